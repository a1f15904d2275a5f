"""Whether one device is well: episodes that begin at a limit and end some way below it.

What nobody has measured is neither well nor ill. Time counts as long as samples come, and a sample
says something about a short time only: of a device that is silent, or of a figure that is missing,
everything stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hetero_hvd.core.backoff import doubled
from hetero_hvd.core.guard.gpu_errors import OF_PROGRAMS, PASSING, UNTIL_RESET, xid_in_words
from hetero_hvd.core.guard.limits import (
    MAX_RETURN_SECONDS,
    REASONS,
    GuardLimits,
    Reason,
    Reply,
)
from hetero_hvd.messages import DeviceSample

HELD_DOWN_BY = ("hardware_slowdown", "hardware_thermal", "thermal", "power_brake")
"""Reasons for a low clock that heat or the power supply have. A power cap is usual under load."""

COUNTED_INTERVALS = 2.0
"""So many times the interval of its samples a sample says how the device is."""

SILENT_INTERVALS, SILENT_SECONDS = 3.0, 10.0
"""Without a sample for so many intervals, and for so long, a device is silent."""


Kind = Literal["GPU", "processors"]
Condition = Literal["ill", "between", "well", "unknown"]


@dataclass(eq=False, slots=True, kw_only=True)
class DeviceEpisode:
    """One time that a device ails for one reason.

    Attributes:
        reason: Why.
        reply: What should follow.
        words: What was seen, for people.
        is_lasting: Whether it does not end by itself.
    """

    reason: Reason
    reply: Reply
    words: str
    is_lasting: bool = False


class EpisodeChange(NamedTuple):
    """An episode that has begun or ended.

    Attributes:
        episode: Which.
        has_begun: Whether it has just begun, or ended.
    """

    episode: DeviceEpisode
    has_begun: bool


class _ReasonState:
    """How one reason comes and goes.

    Attributes:
        condition: By the newest sample that tells.
        episode: That is under way; None: there is none.
        num_episodes: So many so far.
        num_drains: Those of them because of which workers should have gone.
        ill_seconds: Without a break.
        well_seconds: Without a break.
    """

    def __init__(self) -> None:
        self.condition: Condition = "unknown"
        self.episode: DeviceEpisode | None = None
        self.num_episodes = self.num_drains = 0
        self.ill_seconds = self.well_seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        """So much time has passed in the present condition."""
        if self.condition == "ill":
            self.ill_seconds += seconds
        elif self.condition == "well":
            self.well_seconds += seconds

    def turn(self, condition: Condition) -> None:
        """A new sample tells of this condition; of an unknown one nothing follows."""
        self.condition = condition
        if condition not in ("ill", "unknown"):
            self.ill_seconds = 0.0
        if condition not in ("well", "unknown"):
            self.well_seconds = 0.0

    def begin(self, episode: DeviceEpisode) -> EpisodeChange:
        """An episode begins."""
        self.episode = episode
        self.num_episodes += 1
        self.num_drains += episode.reply == "drain"
        self.well_seconds = 0.0
        return EpisodeChange(episode, has_begun=True)

    def end_if_well(self, return_seconds: float) -> Iterator[EpisodeChange]:
        """The episode ends after a time that doubles from one to the next."""
        if (episode := self.episode) is None or episode.is_lasting:
            return
        needed = doubled(return_seconds, self.num_episodes - 1, MAX_RETURN_SECONDS)
        if self.condition == "well" and self.well_seconds >= max(needed, return_seconds):
            self.episode = None
            yield EpisodeChange(episode, has_begun=False)


def _new_states() -> dict[Reason, _ReasonState]:
    return {reason: _ReasonState() for reason in REASONS}


class DeviceHealth:
    """A GPU, or the processors of a machine. Pure: times are arguments, of one monotonic clock.

    Args:
        kind: What it is.
        limits: What counts.
        interval_seconds: Between two samples.

    Attributes:
        sample: The newest one; None before the first.
    """

    def __init__(self, kind: Kind, limits: GuardLimits, *, interval_seconds: float) -> None:
        self.sample: DeviceSample | None = None
        self._kind = kind
        self._limits = limits
        self._interval_seconds = interval_seconds
        self._states = _new_states()
        self._num_memory_errors = math.nan
        self._read_at_seconds = self._passed_at_seconds = -math.inf

    def follow(self, limits: GuardLimits) -> None:
        """Other limits hold from now on; what they leave alone is over, or an alert only.

        Of a driver's error it is not known any more whether it would be worth more than an alert.
        """
        self._limits = limits
        for reason, state in self._states.items():
            reply = limits.reply_to(reason)
            if reply == "off" or (reason == "temperature" and not self._limit_celsius):
                state.episode = None
            elif reply == "alert" and state.episode is not None:
                state.episode.reply = reply
                state.episode.is_lasting = False
            elif reason != "xid" and state.episode is not None:
                state.episode.reply = reply

    @property
    def _limit_celsius(self) -> float:
        is_gpu = self._kind == "GPU"
        return self._limits.temperature if is_gpu else self._limits.cpu_temperature

    @property
    def episodes(self) -> list[DeviceEpisode]:
        """Those under way."""
        return [state.episode for state in self._states.values() if state.episode is not None]

    def is_silent(self, now_seconds: float) -> bool:
        """Whether its samples have stopped to come."""
        limit_seconds = max(SILENT_INTERVALS * self._interval_seconds, SILENT_SECONDS)
        return self.sample is not None and now_seconds > self._read_at_seconds + limit_seconds

    def read(self, sample: DeviceSample, now_seconds: float) -> list[EpisodeChange]:
        """Take a sample; its errors begin episodes at once."""
        self._pass_time(now_seconds)
        before, self.sample = self.sample, sample
        self._read_at_seconds = now_seconds
        self._states["temperature"].turn(self._of_temperature(sample.temperature_celsius))
        is_held_down = any(reason in HELD_DOWN_BY for reason in sample.throttle_reasons)
        self._states["throttled"].turn("ill" if is_held_down else "well")
        self._states["xid"].turn("well")
        is_told = math.isfinite(sample.ecc_uncorrected)
        self._states["ecc"].turn("well" if is_told else "unknown")
        errors_before = self._num_memory_errors  # of NaN, at first, nothing follows
        if is_told:
            self._num_memory_errors = sample.ecc_uncorrected
        num_errors = self._num_memory_errors - errors_before
        if before is None:  # whatever it counts was before our time
            return []
        return [*self._of_xids(before, sample), *self._of_memory(num_errors)]

    def advance(self, now_seconds: float) -> list[EpisodeChange]:
        """Episodes that begin or end because enough time has passed."""
        self._pass_time(now_seconds)
        changes: list[EpisodeChange] = []
        for reason, words in self._lasting_words().items():
            state, reply = self._states[reason], self._limits.reply_to(reason)
            is_long = state.ill_seconds >= self._limits.for_seconds
            is_ill = state.condition == "ill" and is_long
            if is_ill and state.episode is None and reply != "off":
                changes.append(state.begin(DeviceEpisode(reason=reason, reply=reply, words=words)))
        for state in self._states.values():
            changes += state.end_if_well(self._limits.return_seconds)
        return changes

    def forget(self) -> None:
        """Somebody says that it is well: it begins anew."""
        self._states = _new_states()

    def _pass_time(self, now_seconds: float) -> None:
        counted_until = self._read_at_seconds + COUNTED_INTERVALS * self._interval_seconds
        seconds = min(now_seconds, counted_until) - self._passed_at_seconds
        self._passed_at_seconds = now_seconds
        for state in self._states.values():
            state.pass_time(seconds if 0 < seconds < math.inf else 0.0)

    def _of_temperature(self, celsius: float) -> Condition:
        if not self._limit_celsius:
            return "well"
        if not math.isfinite(celsius):
            return "unknown"
        if celsius >= self._limit_celsius:
            return "ill"
        return "between" if celsius > self._limit_celsius - self._limits.return_degrees else "well"

    def _lasting_words(self) -> dict[Reason, str]:
        """What is ill when it lasts."""
        if self.sample is None:
            return {}
        for_long = f"for {self._limits.for_seconds:g} s"
        held_down = ", ".join(r for r in self.sample.throttle_reasons if r in HELD_DOWN_BY)
        return {
            "temperature": f"is at {self.sample.temperature_celsius:.0f} °C, and was at "
            f"{self._limit_celsius:g} °C or more {for_long}",
            "throttled": f"is throttled ({held_down}) {for_long}",
        }

    def _of_xids(self, before: DeviceSample, sample: DeviceSample) -> Iterator[EpisodeChange]:
        numbers = {
            number
            for number, count in sample.xids.items()
            if number not in OF_PROGRAMS and count != before.xids.get(number, 0)
        }
        if not numbers or self._limits.xid == "off":
            return
        is_hardware = any(number in UNTIL_RESET or number in PASSING for number in numbers)
        yield from self._error(
            "xid",
            f"reports {', '.join(map(xid_in_words, sorted(numbers)))}",
            reply=self._limits.xid if is_hardware else "alert",
            is_lasting=any(number in UNTIL_RESET for number in numbers),
        )

    def _of_memory(self, num_errors: float) -> Iterator[EpisodeChange]:
        if num_errors > 0 and self._limits.ecc != "off":
            words = f"has {num_errors:.0f} more errors of its memory that could not be corrected"
            yield from self._error("ecc", words, reply=self._limits.ecc, is_lasting=False)

    def _error(
        self, reason: Reason, words: str, *, reply: Reply, is_lasting: bool
    ) -> Iterator[EpisodeChange]:
        """An error begins an episode, one that is worse than the one under way a new one.

        If it happens again after its episode has ended, that was no passing error. What was worth
        an alert only is not counted for that.
        """
        state = self._states[reason]
        state.well_seconds = 0.0
        now = state.episode
        has_returned = now is None and state.num_drains > 0
        is_lasting = reply == "drain" and (is_lasting or has_returned)
        new = DeviceEpisode(reason=reason, reply=reply, words=words, is_lasting=is_lasting)
        if now is None or _severity(new) > _severity(now):
            yield state.begin(new)


def _severity(episode: DeviceEpisode) -> tuple[bool, bool]:
    return episode.reply == "drain", episode.is_lasting
