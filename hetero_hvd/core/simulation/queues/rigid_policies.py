"""Queues whose jobs never change: first in, first out; backfill; fair share.

A job gets the fastest free devices that it may use, of whatever kinds, with equal shares: that is
what Slurm or a spreadsheet and an unbalanced trainer do. How long a job will take is known exactly,
which is more than a real backfill knows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.fair_share import FairShare
from hetero_hvd.core.simulation.queues.queue_replay import ReplayedJob


class FifoPolicy:
    """The first of the queue starts when there are enough devices; nobody overtakes it.

    Args:
        devices: Of the cluster.
    """

    is_balanced = False
    pause_seconds = 0.0
    round_seconds = math.inf

    def __init__(self, devices: Sequence[QueueDevice]) -> None:
        self._devices = {each.device: each for each in devices}
        self._waiting: list[ReplayedJob] = []

    def submitted(self, job: ReplayedJob, now_seconds: float) -> None:
        """It goes to the end of the queue."""
        del now_seconds
        self._waiting.append(job)

    def finished(self, job: ReplayedJob, now_seconds: float) -> None:
        """Its devices are free."""

    def place(
        self, jobs: Mapping[str, ReplayedJob], now_seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """What runs goes on; the first that wait start."""
        placed = {name: job.devices for name, job in jobs.items() if job.devices}
        taken = {device for devices in placed.values() for device in devices}
        free = [each for name, each in self._devices.items() if name not in taken]
        self._start(jobs, placed, free, now_seconds)
        self._waiting = [job for job in self._waiting if job.trace.request.job not in placed]
        return placed

    def _start(
        self,
        jobs: Mapping[str, ReplayedJob],
        placed: dict[str, tuple[str, ...]],
        free: list[QueueDevice],
        now_seconds: float,
    ) -> None:
        del jobs, now_seconds
        for job in self._waiting:
            chosen = self.fastest(job, free)
            if not chosen:
                return
            self._take(job, chosen, placed, free)

    def number(self, job: ReplayedJob) -> int:
        """Devices that it gets: those it asks for, or all that it may use if there are fewer."""
        able = sum(job.trace.may_use(each) for each in self._devices.values())
        return min(job.trace.num_devices, able)

    def fastest(self, job: ReplayedJob, free: Sequence[QueueDevice]) -> list[QueueDevice]:
        """The fastest free devices for a job; empty: there are not enough."""
        able = sorted(
            (each for each in free if job.trace.may_use(each)), key=job.trace.rate_on, reverse=True
        )
        number = self.number(job)
        return able[:number] if len(able) >= number else []

    @staticmethod
    def _take(
        job: ReplayedJob,
        chosen: Sequence[QueueDevice],
        placed: dict[str, tuple[str, ...]],
        free: list[QueueDevice],
    ) -> None:
        placed[job.trace.request.job] = tuple(each.device for each in chosen)
        for each in chosen:
            free.remove(each)


class BackfillPolicy(FifoPolicy):
    """EASY backfilling (Lifka 1995): the first has a reservation, others may use what it leaves."""

    def _start(
        self,
        jobs: Mapping[str, ReplayedJob],
        placed: dict[str, tuple[str, ...]],
        free: list[QueueDevice],
        now_seconds: float,
    ) -> None:
        shadow, extra = math.inf, 0
        is_reserved = False
        for job in self._in_order(now_seconds):
            if not free:
                return
            chosen = self.fastest(job, free)
            if is_reserved and chosen:
                ends = now_seconds + self._seconds(job, chosen)
                if ends > shadow:
                    if len(chosen) > extra:
                        continue
                    extra -= len(chosen)
            if chosen:
                self._take(job, chosen, placed, free)
            elif not is_reserved:
                is_reserved = True
                shadow, extra = self._reservation(job, jobs, placed, len(free), now_seconds)

    def _in_order(self, now_seconds: float) -> Sequence[ReplayedJob]:
        del now_seconds
        return self._waiting

    def _seconds(self, job: ReplayedJob, chosen: Sequence[QueueDevice]) -> float:
        rate = job.trace.rate_of(list(chosen), is_balanced=self.is_balanced)
        return job.remaining_work / rate

    def _reservation(
        self,
        first: ReplayedJob,
        jobs: Mapping[str, ReplayedJob],
        placed: Mapping[str, tuple[str, ...]],
        num_free: int,
        now_seconds: float,
    ) -> tuple[float, int]:
        """When the first can start, and how many devices it leaves then."""
        ends = sorted(
            (
                now_seconds + self._seconds(jobs[name], [self._devices[each] for each in devices]),
                len(devices),
            )
            for name, devices in placed.items()
        )
        number = self.number(first)
        for at, count in ends:
            num_free += count
            if num_free >= number:
                return at, num_free - number
        return math.inf, 0


class OneKindPolicy(BackfillPolicy):
    """Backfilling where a job's devices are of one kind, as under a constraint in Slurm.

    A job gets the kind on which it is fastest of those that have enough free devices.
    """

    def number(self, job: ReplayedJob) -> int:
        """Devices that it gets: those it asks for, or all of the largest kind that it may use."""
        able = Counter(e.kind for e in self._devices.values() if job.trace.may_use(e))
        return min(job.trace.num_devices, max(able.values()))

    def fastest(self, job: ReplayedJob, free: Sequence[QueueDevice]) -> list[QueueDevice]:
        """Of one kind."""
        number = self.number(job)
        kinds: dict[str, list[QueueDevice]] = {}
        for each in free:
            if job.trace.may_use(each):
                kinds.setdefault(each.kind, []).append(each)
        able = [found[:number] for found in kinds.values() if len(found) >= number]
        return max(able, key=lambda found: job.trace.rate_on(found[0]), default=[])


class BalancedPolicy(BackfillPolicy):
    """Backfilling of jobs whose trainer balances: what Slurm and our trainer do together."""

    is_balanced = True


class FairPolicy(BackfillPolicy):
    """Backfilling in the order of what users have had, as Slurm's fair share; half-life a week.

    Args:
        devices: Of the cluster.
        half_life_seconds: After so long a use counts half.
    """

    def __init__(
        self, devices: Sequence[QueueDevice], half_life_seconds: float = 7 * 86400.0
    ) -> None:
        super().__init__(devices)
        self._fair_share = FairShare(half_life_seconds)
        self._since: dict[str, float] = {}

    def finished(self, job: ReplayedJob, now_seconds: float) -> None:
        """Its user has had its devices."""
        speed = sum(self._devices[name].relative_speed for name in job.devices)
        used = {job.trace.request.user: speed}
        self._fair_share.charge(used, now_seconds - job.placed_at_seconds, now_seconds)

    def _in_order(self, now_seconds: float) -> Sequence[ReplayedJob]:
        return sorted(
            self._waiting,
            key=lambda job: self._fair_share.used(job.trace.request.user, now_seconds),
        )
