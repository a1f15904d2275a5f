"""What each worker of a recorded run has needed for its shares, while it had the speed of now."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero_hvd.core.cost.placement import ShareTime
from hetero_hvd.messages import (
    OWN_PHASES,
    Event,
    RunStarted,
    StragglerReported,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.reader import Record


class ShareTimes(NamedTuple):
    """What counts of a run's workers.

    Attributes:
        joined: The newest membership; None: nobody has trained.
        times: What its members have needed for their shares.
        since: From when on that counts, in words, of those of whom more was measured.
    """

    joined: WorkersJoined | None
    times: Mapping[WorkerId, Sequence[ShareTime]]
    since: Mapping[WorkerId, str]


def newest_members(record: Record) -> WorkersJoined | None:
    """Who has trained at the end of a record; None: nobody has trained."""
    return next((e for _, e in reversed(record.events) if isinstance(e, WorkersJoined)), None)


@dataclass
class _Speeds:
    """Since when each worker has had the speed that it has now: a fold over a run's events.

    A worker that was never told to be slow has always had it. Of another one nothing counts that it
    did before the newest start, whose steps may have the numbers of earlier ones.
    """

    since: dict[WorkerId, tuple[int, str]] = field(default_factory=dict)
    """From which step on, and the same in words."""

    since_seconds: float = -math.inf
    slow: set[WorkerId] = field(default_factory=set)
    gone: set[WorkerId] = field(default_factory=set)
    start_seconds: float = -math.inf

    def observe(self, at_seconds: float, event: Event) -> None:
        """Take in the next event."""
        match event:
            case RunStarted():
                self.start_seconds = at_seconds
            case WorkersJoined():
                self._joined(event)
            case StragglerReported() if math.isfinite(event.speed_ratio):
                self._reported(event)
            case _:
                pass

    def _joined(self, event: WorkersJoined) -> None:
        """Who left while it was slow may be well when it comes back, and nobody tells that."""
        if self.since_seconds != self.start_seconds:  # a start that has trained nothing is none
            self.since_seconds = self.start_seconds
            self.since = dict.fromkeys(self.since, (0, "since the newest start"))
            self.slow.clear()
            self.gone.clear()
        step = event.applied_steps
        came_back = (step, f"since it came back at step {step}")
        self.since |= dict.fromkeys(self.gone.intersection(event.workers), came_back)
        self.gone = (self.gone | self.slow).difference(event.workers)
        self.slow.intersection_update(event.workers)

    def _reported(self, event: StragglerReported) -> None:
        """Of one that is slow already it tells a change by its step, not when it became slow."""
        worker, was_slow = event.worker, event.worker in self.slow
        if not event.is_slow and not was_slow:
            return  # its timings were missing
        since_step = event.step if was_slow else event.since_step
        changed = (since_step, f"since its speed changed at step {since_step}")
        self.since[worker] = max(changed, self.since.get(worker, changed))
        self.slow = self.slow | {worker} if event.is_slow else self.slow - {worker}

    def counts(self, worker: WorkerId, first_step: int, at_seconds: float) -> bool:
        """Whether it had its speed of now in an interval, by the first step of it and its time."""
        if worker not in self.since:
            return True
        return first_step >= self.since[worker][0] and at_seconds >= self.since_seconds


def share_times(record: Record) -> ShareTimes:
    """The newest membership, and what its members have needed for their shares.

    Of a worker that was slow, only since then, or since it is: its share has changed because its
    speed has, so that a curve through both would say that its time does not depend on its share.
    Where shares vary by themselves all that counts is its time per sample.
    """
    joined = newest_members(record)
    found: dict[WorkerId, list[ShareTime]] = defaultdict(list)
    since: dict[WorkerId, str] = {}
    speeds = _Speeds()
    for at_seconds, event in record.events:
        speeds.observe(at_seconds, event)
    members = {str(worker): worker for worker in (joined.workers if joined else ())}
    for row in record.rollups:
        worker = members.get(row["worker"])
        own = [row[f"{phase}_seconds"] for phase in OWN_PHASES]
        if worker is None or None in own or not row["num_steps"] or not row["samples"]:
            continue
        steps = row["num_steps"]
        if not speeds.counts(worker, row["last_step"] - steps + 1, row["at_unix_seconds"]):
            _, since[worker] = speeds.since[worker]
            continue
        found[worker].append(
            ShareTime(share=row["samples"] / steps, busy_seconds=sum(own) / steps, num_steps=steps)
        )
    if joined is not None and joined.shares_vary:
        found = {worker: _at_one_share(rows) for worker, rows in found.items()}
    return ShareTimes(joined, found, since)


def _at_one_share(rows: Sequence[ShareTime]) -> list[ShareTime]:
    """With the times per sample that they have: a share was whatever its time allowed.

    Each stands for as many samples as before, so a line through them is the ratio of their sums.
    """
    samples = [row.share * row.num_steps for row in rows]
    share = math.fsum(samples) / math.fsum(row.num_steps for row in rows)
    return [
        ShareTime(
            share=share,
            busy_seconds=share * row.busy_seconds / row.share,
            num_steps=num_samples / share,
        )
        for row, num_samples in zip(rows, samples, strict=True)
    ]
