"""Finds that nobody takes a step any more, and whom the others wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hetero_hvd.messages import Heartbeat, StallReported, WorkerId

STALL_SECONDS = 10.0
"""Without a step; nothing is said earlier."""

USUAL_RATIO = 3.0
"""Nor before so many times the longest of the last steps."""

EVALUATION_SECONDS = 60.0
"""Nor before this while somebody evaluates: that takes as long as it takes."""

SILENT_SECONDS = 3.0
"""A heart that has not beaten for so long tells nothing of its worker's phase any more."""

NUM_STEPS = 5


@dataclass
class _Heard:
    """What a member has said last.

    Attributes:
        phase: As in `Heartbeat`.
        at_seconds: When.
    """

    phase: str
    at_seconds: float


class StallWatch:
    """Says once that the training stands, and once that it goes on."""

    def __init__(self) -> None:
        self._members: dict[WorkerId, _Heard] = {}
        self._gone: set[WorkerId] = set()
        self._applied_steps = -1
        self._stepped_at_seconds = 0.0
        self._usual_seconds: deque[float] = deque(maxlen=NUM_STEPS)
        self._has_stepped = self._is_told = False
        self._standing_since = 0.0

    def begin(self, workers: Iterable[WorkerId], applied_steps: int, now_seconds: float) -> None:
        """These train together from now on."""
        self._members = {worker: _Heard("", now_seconds) for worker in workers}
        self._gone = set()
        self._applied_steps = applied_steps
        self._stepped_at_seconds = now_seconds
        self._has_stepped = False

    def heard(self, worker: WorkerId, beat: Heartbeat, now_seconds: float) -> None:
        """A member's heart has beaten."""
        if worker not in self._members:
            return
        self._members[worker] = _Heard(beat.phase, now_seconds)
        if beat.applied_steps > self._applied_steps:
            if self._has_stepped:
                self._usual_seconds.append(now_seconds - self._stepped_at_seconds)
            self._has_stepped = True
            self._applied_steps = beat.applied_steps
            self._stepped_at_seconds = now_seconds

    def left(self, worker: WorkerId) -> None:
        """A member has done its part; nobody waits for it any more."""
        if self._members.pop(worker, None) is not None:
            self._gone.add(worker)

    def returned(self, worker: WorkerId, now_seconds: float) -> None:
        """A member that has done its part begins another one."""
        if worker in self._gone:
            self._gone.remove(worker)
            self._members[worker] = _Heard("", now_seconds)
            self._stepped_at_seconds = now_seconds
            self._has_stepped = False

    def slept(self, seconds: float) -> None:
        """The watch itself has not run for so long: nobody could be heard."""
        self._stepped_at_seconds += seconds
        self._members = {
            worker: _Heard(heard.phase, heard.at_seconds + seconds)
            for worker, heard in self._members.items()
        }

    def look(self, now_seconds: float, *, is_training: bool) -> StallReported | None:
        """What is to be said now, if anything.

        Args:
            now_seconds: The caller's clock.
            is_training: Whether there is a membership; else nobody is to take a step.
        """
        lasted = now_seconds - self._stepped_at_seconds
        is_stalled = is_training and bool(self._members) and lasted >= self._limit_seconds()
        if is_stalled == self._is_told:
            return None
        self._is_told = is_stalled
        if is_stalled:
            self._standing_since = self._stepped_at_seconds
        else:
            lasted = self._stepped_at_seconds - self._standing_since
        late = self._late(now_seconds) if is_stalled else {}
        return StallReported(
            step=self._applied_steps,
            is_stalled=is_stalled,
            seconds=lasted,
            workers=tuple(late),
            phases=tuple(late.values()),
        )

    def _limit_seconds(self) -> float:
        longest = max(self._usual_seconds, default=0.0)
        is_evaluating = any(heard.phase == "evaluation" for heard in self._members.values())
        limit = EVALUATION_SECONDS if is_evaluating else STALL_SECONDS
        return max(limit, USUAL_RATIO * longest)

    def _late(self, now_seconds: float) -> dict[WorkerId, str]:
        """Whom the others wait for, and in which phase; `silent` where that is not known."""
        phases = {
            worker: "silent" if now_seconds - heard.at_seconds > SILENT_SECONDS else heard.phase
            for worker, heard in self._members.items()
        }
        return {worker: phase for worker, phase in phases.items() if phase != "comm_wait"}


def stall_in_words(event: StallReported) -> str:
    """Who is waited for, or that it is over."""
    if not event.is_stalled:
        return f"step {event.step}: training goes on after {event.seconds:.0f} s without a step"
    doing = {"silent": "which is silent", "rendezvous": "in a new rendezvous", "": "in its script"}
    waited_for = ", ".join(
        f"{worker} {doing.get(phase, f'in {phase}'.replace('_', ' '))}"
        for worker, phase in zip(event.workers, event.phases, strict=True)
    )
    why = (
        f"waiting for {waited_for}" if waited_for else "all wait in a reduction: is the network up?"
    )
    return f"step {event.step}: nobody has stepped for {event.seconds:.0f} s: {why}"
