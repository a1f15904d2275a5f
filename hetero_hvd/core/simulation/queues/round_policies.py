"""Policies that decide in rounds, as published: Gavel-like and Sia-like, in our own words.

Both are re-implementations of the policy only: no linear or integer program is solved, but the same
objective is followed greedily, with a pass that improves on it. Where that differs it is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.simulation.queues.queue_replay import ReplayedJob


class _RoundPolicy:
    """One kind of device for each job.

    Args:
        devices: Of the cluster.
    """

    is_balanced = True  # one kind: equal shares are balanced
    pause_seconds = 60.0
    round_seconds = 360.0

    def __init__(self, devices: Sequence[QueueDevice]) -> None:
        self._kinds: dict[str, list[QueueDevice]] = {}
        for each in devices:
            self._kinds.setdefault(each.kind, []).append(each)

    def submitted(self, job: ReplayedJob, now_seconds: float) -> None:
        """It is looked at with the next placement."""

    def finished(self, job: ReplayedJob, now_seconds: float) -> None:
        """Its devices are free."""

    def _named(
        self, jobs: Mapping[str, ReplayedJob], wanted: Mapping[str, tuple[str, int]]
    ) -> dict[str, tuple[str, ...]]:
        """From kinds and numbers to devices; who has some of its kind keeps them."""
        free = {kind: [each.device for each in devices] for kind, devices in self._kinds.items()}
        placed: dict[str, list[str]] = {}
        for name, (kind, number) in wanted.items():
            kept = [device for device in jobs[name].devices if device in free[kind]][:number]
            placed[name] = kept
            for device in kept:
                free[kind].remove(device)
        for name, (kind, number) in wanted.items():
            for _ in range(number - len(placed[name])):
                placed[name].append(free[kind].pop())
        return {name: tuple(devices) for name, devices in placed.items()}

    def _able(self, job: ReplayedJob, kind: str) -> int:
        """So many devices of a kind the job may use."""
        return len(self._kinds[kind]) if job.trace.may_use(self._kinds[kind][0]) else 0

    def _rate(self, job: ReplayedJob, kind: str, number: int) -> float:
        return job.trace.rate_of(self._kinds[kind][:number], is_balanced=True)


class GavelPolicy(_RoundPolicy):
    """Gavel-like: each round the jobs first that are furthest behind an equal share.

    Max-min fairness over unlike devices (Narayanan et al., OSDI 2020): a job's measure is what it
    has done over what it would have, had it the whole time one nth of each kind. Gavel solves a
    linear program for the shares and follows it by rounds; here the rounds follow the measure
    itself, each job on the kind that it is fastest on among those free.
    """

    def place(
        self, jobs: Mapping[str, ReplayedJob], now_seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """The placement of a round."""
        free = {kind: len(devices) for kind, devices in self._kinds.items()}
        wanted: dict[str, tuple[str, int]] = {}
        for name in sorted(jobs, key=lambda name: self._progress(jobs, name, now_seconds)):
            job = jobs[name]
            offers = []
            for kind, number_free in free.items():
                number = min(job.trace.num_devices, self._able(job, kind))
                if number and number <= number_free:
                    offers.append((self._rate(job, kind, number), kind, number))
            if offers:
                _, kind, number = max(offers)
                wanted[name] = (kind, number)
                free[kind] -= number
        return self._named(jobs, wanted)

    def _progress(
        self, jobs: Mapping[str, ReplayedJob], name: str, now_seconds: float
    ) -> tuple[float, float]:
        job = jobs[name]
        equal = sum(
            self._rate(job, kind, min(job.trace.num_devices, able)) * len(self._kinds[kind])
            for kind in self._kinds
            if (able := self._able(job, kind))
        )
        seconds = max(1.0, now_seconds - job.trace.submit_seconds)
        return job.done_work / (equal / len(jobs) * seconds), job.trace.submit_seconds


class SiaPolicy(_RoundPolicy):
    """Sia-like: elastic, each job on one kind, the sum of powers of speed-ups (SOSP 2023).

    Sia minimises the sum over jobs of g^p, p = -0.5, with g the job's rate over that of its slowest
    single device, and a penalty for each job without devices; a configuration other than the
    present one counts for less by what restarts have cost the job: (age - restarts x cost) / (age +
    cost). Sia solves an integer program; here devices are given one by one to whom they serve most,
    then each job is tried on each other kind until nothing improves. Sia grows a job at most
    twofold in a round; here it may grow at once.
    """

    round_seconds = 600.0
    power = -0.5
    penalty = 1.1

    def place(
        self, jobs: Mapping[str, ReplayedJob], now_seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """The placement of a round."""
        free = {kind: len(devices) for kind, devices in self._kinds.items()}
        wanted: dict[str, tuple[str, int]] = {}
        self._fill(jobs, wanted, free, now_seconds)
        for name in list(wanted):
            kind, number = wanted.pop(name)
            free[kind] += number
            self._fill({name: jobs[name]}, wanted, free, now_seconds)
        self._fill(jobs, wanted, free, now_seconds)
        return self._named(jobs, wanted)

    def _fill(
        self,
        jobs: Mapping[str, ReplayedJob],
        wanted: dict[str, tuple[str, int]],
        free: dict[str, int],
        now_seconds: float,
    ) -> None:
        """Give devices one by one to whom they serve most."""
        while True:
            best, who, where, most = 0.0, "", "", 0
            for name, job in jobs.items():
                held = wanted.get(name)
                now = self._value(job, *held, now_seconds) if held else -self.penalty
                for kind in [held[0]] if held else self._kinds:
                    number = held[1] + 1 if held else job.trace.request.min_devices
                    limit = min(self._able(job, kind), job.trace.request.most_devices)
                    extra = number - (held[1] if held else 0)
                    if number <= limit and extra <= free[kind]:
                        gain = (self._value(job, kind, number, now_seconds) - now) / extra
                        if gain > best:
                            best, who, where, most = gain, name, kind, number
            if not who:
                return
            free[where] -= most - (wanted[who][1] if who in wanted else 0)
            wanted[who] = (where, most)

    def _value(self, job: ReplayedJob, kind: str, number: int, now_seconds: float) -> float:
        slowest = min(
            job.trace.rate_on(devices[0])
            for devices in self._kinds.values()
            if job.trace.may_use(devices[0])
        )
        value = self._rate(job, kind, number) / slowest
        is_same = len(job.devices) == number and job.devices[0].startswith(f"{kind}-")
        if job.devices and not is_same:
            age = max(now_seconds - job.trace.submit_seconds, self.pause_seconds)
            lost = job.num_changes * self.pause_seconds
            value *= max(0.1, (age - lost) / (age + self.pause_seconds))
        return float(-(value**self.power))
