"""What a run has got done, and when: samples, epochs, a target that was reached."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hetero_hvd.errors import UserError
from hetero_hvd.messages import (
    EpochBegan,
    Evaluated,
    Event,
    Finished,
    Judged,
    RunEnded,
    RunStarted,
    WorkersJoined,
)

_TARGET = re.compile(r"\s*(?P<name>[^\s<>=]+)\s*(?P<sign><=|>=|<|>)\s*(?P<value>\S+)\s*")
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LOSS = "loss"
MAX_UNHEARD = 1000
"""Epochs between two exchanges."""


class Point(NamedTuple):
    """The run at a time, from its rollups.

    Attributes:
        at_seconds: Seconds since 1970.
        step: Index of the last step.
        loss: Mean of the interval that ended then; NaN: not recorded.
    """

    at_seconds: float
    step: int
    loss: float


class EpochSpan(NamedTuple):
    """Some time in which an epoch was under way, seconds since 1970.

    Attributes:
        epoch: Its number.
        from_seconds: When the first exchange of it was heard of.
        until_seconds: When that of the next one was, or the run ended.
        earliest_seconds: It had not begun before; NaN: an earlier version has not recorded that.
        surely_until_seconds: From `from_seconds` on it was under way so long at least; NaN:
            likewise.
        latest_seconds: It was over then.
    """

    epoch: int
    from_seconds: float
    until_seconds: float
    earliest_seconds: float = math.nan
    surely_until_seconds: float = math.nan
    latest_seconds: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What was done; what was lost and done again counts once.

    Attributes:
        steps: Optimizer steps applied in this record; those of an earlier run that it goes on with
            in another folder are not its own.
        samples: Of these steps; the last batch of an epoch may be smaller, so it is an upper bound.
        spans: When which epoch was under way; one that was begun again has several.
    """

    steps: int
    samples: int
    spans: tuple[EpochSpan, ...]

    @property
    def epochs(self) -> tuple[int, ...]:
        """Numbers of those that were under way, ascending."""
        return tuple(sorted({span.epoch for span in self.spans}))


class _Counting:
    """A fold over the events.

    Steps are counted from where a membership begins to where the next one does: what was applied
    after the state that is gone on with was lost.
    """

    def __init__(self) -> None:
        self.steps = self.samples = 0
        self.spans: list[EpochSpan] = []
        self.now_seconds = self.joined_at_seconds = -math.inf
        self._begin: int | None = None
        self._last = self._size = 0
        self._is_in_epoch = False
        self._within_seconds = math.nan

    def observe(self, at_seconds: float, event: Event) -> None:
        """Take in the next event."""
        before, self.now_seconds = self.now_seconds, max(self.now_seconds, at_seconds)
        match event:
            case RunStarted():
                self.leave_epoch(before)
            case RunEnded():
                self.leave_epoch(self.now_seconds)
            case EpochBegan():
                within = event.within_seconds
                self._within_seconds = math.nan if within is None else within
                self.leave_epoch(self.now_seconds, event.epoch)
                earliest = self.now_seconds - self._within_seconds
                self.spans.append(
                    EpochSpan(event.epoch, self.now_seconds, self.now_seconds, earliest)
                )
                self._is_in_epoch = True
                if self._begin is None and self._size:  # another loop over epochs, by the same ones
                    self._begin = self._last = 0
                self.reached(event.step + 1)
            case WorkersJoined():
                self._count(event.applied_steps)
                self._begin = self._last = event.applied_steps
                self._size = event.global_batch_size
                self.joined_at_seconds = self.now_seconds
            case Finished():
                self._count(event.applied_steps)
                self._begin = None
            case Evaluated():
                self.reached(event.step)
            case Judged():
                self.reached(event.step + 1)

    def reached(self, applied_steps: int) -> None:
        """So many steps are applied."""
        self._last = max(self._last, applied_steps)

    def end(self) -> None:
        """That is all that was recorded."""
        self._count(self._last)

    def leave_epoch(self, at_seconds: float, following: int = 0) -> None:
        """The epoch under way is so no more; short ones that were not heard of share its time.

        It was under way when the exchange before the last was heard of; of an end that no exchange
        tells, those before it say how long ago that may have been.
        """
        if self._is_in_epoch:
            sure = at_seconds - self._within_seconds
            epoch, since, _, earliest, *_ = self.spans.pop()
            number = following - epoch if 0 < following - epoch <= MAX_UNHEARD else 1
            shared_from = since if math.isnan(sure) else max(since, sure)
            width = (at_seconds - shared_from) / number
            ends = [*(shared_from + width * i for i in range(1, number)), at_seconds]
            surely_until = sure
            for index, end in enumerate(ends):
                span = EpochSpan(epoch + index, since, end, earliest, surely_until, at_seconds)
                self.spans.append(span)
                since, earliest = end, sure  # the others lie in between, nobody knows where
                surely_until = math.nan if math.isnan(sure) else end
        self._is_in_epoch = False

    def _count(self, applied_steps: int) -> None:
        if self._begin is not None:
            self.steps += applied_steps - self._begin
            self.samples += (applied_steps - self._begin) * self._size


def trained_of(
    events: Iterable[tuple[float, Event]], points: Iterable[Point], until_seconds: float
) -> Trained:
    """Read it from a record.

    Args:
        events: In order, with their times in seconds since 1970.
        points: Of the rollups, by time.
        until_seconds: When something was last heard of the run.
    """
    training = _Counting()
    for at_seconds, event in events:
        training.observe(at_seconds, event)
    for point in points:
        if point.at_seconds > training.joined_at_seconds:
            training.reached(point.step + 1)
    training.end()
    training.leave_epoch(max(training.now_seconds, until_seconds))
    return Trained(steps=training.steps, samples=training.samples, spans=tuple(training.spans))


class Target(NamedTuple):
    """What a run is to reach.

    Attributes:
        name: Of a metric, or `loss`.
        sign: `<`, `<=`, `>` or `>=`.
        value: The limit.
    """

    name: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read such as `accuracy >= 0.9`.

        Raises:
            UserError: It is none.
        """
        found = _TARGET.fullmatch(text)
        try:
            value = float(found["value"]) if found else math.nan
        except ValueError:
            value = math.nan
        if found is None or not math.isfinite(value):
            raise UserError(
                f"--to {text!r}: must be a metric or 'loss', one of < <= > >=, and a number, such "
                "as 'accuracy >= 0.9'"
            )
        return cls(found["name"], found["sign"], value)

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.value:g}"

    def is_met_by(self, value: float) -> bool:
        """Whether a value is one that was to be reached; NaN is not."""
        return _SIGNS[self.sign](value, self.value)

    def reached_at(
        self, events: Iterable[tuple[float, Event]], points: Iterable[Point]
    ) -> tuple[float, int] | None:
        """When it was reached first, seconds since 1970, and at which step; None: never.

        Raises:
            UserError: The run has no such metric; says which it has.
        """
        known: set[str] = set()
        now = -math.inf
        for at_seconds, event in events:
            now = max(now, at_seconds)
            if isinstance(event, Evaluated):
                known |= event.metrics.keys()
                if self.is_met_by(event.metrics.get(self.name, math.nan)):
                    return now, event.step
        if self.name == LOSS and LOSS not in known:  # the training loss, where none is held out
            for point in points:
                if self.is_met_by(point.loss):
                    return point.at_seconds, point.step + 1
            return None
        if self.name not in known:
            raise UserError(
                f"--to: the run has no metric {self.name!r}; there are "
                f"{', '.join(sorted(known | {LOSS}))}"
            )
        return None
