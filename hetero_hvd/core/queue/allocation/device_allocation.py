"""Devices to jobs, one after the other to whom it serves most.

The measure is what a device adds to the sum over jobs of weight x rate / remaining work: with equal
weights, who would be done first comes first, which is optimal for the mean completion on one
machine (Schrage 1968), and a job that gains little from one more device leaves it to others, as
heSRPT does for jobs of known size whose speed-up diminishes (Berg et al., arXiv 1903.09346). The
greedy choice by marginal gains is that of Optimus (Peng et al., EuroSys 2018); a change counts for
less by what it costs.

A job's gain only falls while devices go away, so a heap with one entry per job is right to within a
look at its top (Minoux 1978): the whole costs about (jobs + devices x classes) log jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from hetero_hvd.core.queue.allocation.exchanges import NO_GAIN, exchange
from hetero_hvd.core.queue.device_classes import ClassTable, JobShare
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.queue.set_rate import BALANCED_RATIO, LOG2, RING

MAX_TRIED = 16
"""Sets of nodes of a trial, the fastest of it, that a job may start on."""


class DeviceAllocation:
    """Devices that are given to jobs, until none is left that serves anyone.

    Args:
        table: The classes of devices.
        settings: What a change costs.
        limits: Pool to the most devices of one of its users; missing: no limit.

    Attributes:
        free: Devices of each class that nobody has been given.
        claimed: So many of them are kept for jobs that wait for more: only what shrinks may have
            them meanwhile.
    """

    def __init__(
        self, table: ClassTable, settings: QueueSettings, limits: Mapping[str, int]
    ) -> None:
        self.table = table
        self.free = [len(group.devices) for group in table.classes]
        self.claimed = [0] * len(self.free)
        self._settings = settings
        self._limits = limits
        self._of_user: dict[tuple[str, str], int] = {}
        self._of_array: dict[str, int] = {}
        self._kinds = table.kinds
        self._shares: list[JobShare] = []

    def keep(self, share: JobShare) -> None:
        """Leave a job what it has, as it cannot be taken away."""
        self._give(share, [i for i, n in enumerate(share.current) for _ in range(n)])

    def grant_fewest(self, share: JobShare) -> bool:
        """Give a job the fewest devices that it runs on, before all others, if they are there."""
        chosen = self._fewest(share, is_lent=False, may_claim=False)
        self._give(share, chosen)
        return bool(chosen)

    def claim(self, share: JobShare) -> int:
        """Keep what is free for a job that cannot start yet, against those that never shrink.

        Nothing is kept for one that more devices would not let start: a limit of its user or its
        array holds it up, or too few devices are in the cluster.

        Returns:
            How many devices it lacks still; 0: nothing is kept.
        """
        missing = share.job.request.min_devices
        able = sum(
            len(group.devices)
            for index, group in enumerate(self.table.classes)
            if share.speeds.speeds[index] and share.speeds.is_own[index]
        )
        if able < missing or self._room(share, is_lent=False) < missing:
            return 0
        for index, speed in enumerate(share.speeds.speeds):
            if speed and share.speeds.is_own[index]:
                number = min(missing, self.free[index] - self.claimed[index])
                self.claimed[index] += number
                missing -= number
        return missing

    def distribute(
        self, shares: Iterable[JobShare], *, is_lent: bool, may_claim: Callable[[JobShare], bool]
    ) -> None:
        """Give what is free to whom it serves most.

        Args:
            shares: Jobs, the most urgent first; read no further than the devices reach.
            is_lent: Whether devices of other pools, and those above a user's limit, are given.
            may_claim: Whether a job that never shrinks ends before those want the devices for
                whom they are claimed.
        """
        coming = iter(shares)
        upcoming = next(coming, None)
        heap: list[tuple[float, int, JobShare, list[int]]] = []

        def push(share: JobShare) -> None:
            gain, chosen = self._best(share, is_lent=is_lent, may_claim=may_claim(share))
            if chosen:
                heapq.heappush(heap, (-gain, share.job.number, share, chosen))

        num_free = sum(self.free)
        while num_free:
            while upcoming is not None and (not heap or upcoming.urgency >= -heap[0][0]):
                push(upcoming)
                upcoming = next(coming, None)
            if not heap:
                return
            _, _, share, chosen = heapq.heappop(heap)
            if self._is_there(share, chosen, is_lent=is_lent, may_claim=may_claim):
                self._give(share, chosen)
                num_free -= len(chosen)
            push(share)

    def take_back(self, waiting: Iterable[JobShare], kept: Container[str]) -> bool:
        """Serve jobs within their users' limits by what others have above theirs.

        Up to the limit a user is given what serves most, then what is idle is lent. So what the
        user gives back is not always what was lent: a job that waits may be able to use the other
        devices alone.

        Args:
            waiting: The jobs, those with the best rights first.
            kept: Names of jobs that keep their fewest.

        Returns:
            Whether it has served one; then more may be idle than before.
        """
        above = self._above()
        has_served = False
        for share in waiting if above else ():
            if share.count or self._room(share, is_lent=False) < share.job.request.min_devices:
                continue
            if taken := self._takes(share, above, kept):
                for other, index in taken:
                    self._take(other, index)
                self._give(share, self._fewest(share, is_lent=False, may_claim=True))
                has_served = True
                above = self._above()
        return has_served

    def _above(self) -> dict[tuple[str, str], int]:
        """Pool and user to how many devices the user has above the limit, of those who do."""
        found = {key: number - self._limits.get(key[0], 0) for key, number in self._of_user.items()}
        return {key: n for key, n in found.items() if n > 0 and self._limits.get(key[0], 0)}

    def _takes(
        self, share: JobShare, above: Mapping[tuple[str, str], int], kept: Container[str]
    ) -> list[tuple[JobShare, int]]:
        """What makes up the fewest devices of a job, from whom; none: it cannot be made up."""
        request, left = share.job.request, dict(above)
        able = [i for i, own in enumerate(share.speeds.is_own) if own and share.speeds.speeds[i]]
        missing = request.min_devices - sum(self.free[index] for index in able)
        holders = [
            other
            for other in reversed(self._shares)  # what is lent was given last
            if other.job.request.pool == request.pool
            and left.get((request.pool, other.job.request.user), 0) > 0
            and other.job.request.user != request.user
            and (other.job.request.is_shrinkable or not other.job.devices)
        ]
        taken: list[tuple[JobShare, int]] = []
        for other in holders:  # first what shrinks
            key = (request.pool, other.job.request.user)
            spare = other.count - other.job.request.min_devices
            for index in able:
                number = min(other.given[index], spare, left[key], missing)
                if number > 0:
                    taken += [(other, index)] * number
                    spare, missing = spare - number, missing - number
                    left[key] -= number
        for other in holders:  # then what stops
            key = (request.pool, other.job.request.user)
            gone = [index for each, index in taken if each is other]
            rest = [i for i, n in enumerate(other.given) for _ in range(n - gone.count(i))]
            number = sum(index in able for index in rest)
            if missing > 0 and number and left[key] > 0 and other.job.request.job not in kept:
                taken += [(other, index) for index in rest]
                missing -= number
                left[key] -= len(rest)
        return taken if missing <= 0 else []

    def _take(self, share: JobShare, index: int) -> None:
        share.take(index, self._kinds)
        self.free[index] += 1
        request = share.job.request
        if share.speeds.is_own[index]:
            self._of_user[request.pool, request.user] -= 1
        if not share.count:
            self._shares.remove(share)
            if request.array:
                self._of_array[request.array] -= 1

    def stay(self) -> bool:
        """Leave jobs on devices that are lent to them, where moving to their own gains nothing.

        Returns:
            Whether one stays; then others may use what it leaves.
        """
        stays = False
        for share in list(self._shares):
            lent = [i for i, own in enumerate(share.speeds.is_own) if not own and share.current[i]]
            for there in lent:
                for here, own in enumerate(share.speeds.is_own):
                    while own and self._gains_by_staying(share, here, there):
                        self._take(share, here)
                        self._give(share, [there])
                        stays = True
        return stays

    def _gains_by_staying(self, share: JobShare, here: int, there: int) -> bool:
        given, current = share.given, share.current
        is_new = given[here] > current[here] and given[there] < current[there]
        if not is_new or self.free[there] <= self.claimed[there]:
            return False
        after = list(given)
        after[here] -= 1
        after[there] += 1
        return self._value(share, after) > self._value(share, given) + NO_GAIN

    def exchange(self) -> None:
        """Let jobs exchange devices while that serves both together more; see `exchanges`."""
        movable = (
            share
            for share in self._shares
            if share.job.request.is_shrinkable or not share.job.devices
        )
        exchange(movable, self.table, self._value)

    def _value(self, share: JobShare, given: Sequence[int]) -> float:
        """Mean rate over the time that a placement is taken to last."""
        rate = share.rate_of_counts(given, self._kinds)
        kept = list(map(min, given, share.current))
        if kept == given:
            return rate
        seconds = min(self._settings.horizon_seconds, share.remaining_seconds / rate)
        part = min(1.0, self._settings.start_seconds / seconds)
        meanwhile = share.rate_of_counts(kept, self._kinds) if share.job.devices else 0.0
        return rate + part * (min(meanwhile, rate) - rate)  # else it gained by moving to and fro

    def _is_there(
        self,
        share: JobShare,
        chosen: Sequence[int],
        *,
        is_lent: bool,
        may_claim: Callable[[JobShare], bool],
    ) -> bool:
        """Whether what served a job most when it was looked at is still there for it.

        Then it still serves it most: nothing becomes free while devices are given.
        """
        if may_claim(share):
            are_free = all(self.free[i] >= chosen.count(i) for i in chosen)
        else:
            are_free = all(self.free[i] - self.claimed[i] >= chosen.count(i) for i in chosen)
        return are_free and self._room(share, is_lent=is_lent) >= len(chosen)

    def _give(self, share: JobShare, chosen: Sequence[int]) -> None:
        request = share.job.request
        if chosen and not share.count:
            self._shares.append(share)
            if request.array:
                self._of_array[request.array] = self._of_array.get(request.array, 0) + 1
        for index in chosen:
            share.give(index, self._kinds[index])
            self.free[index] -= 1
            self.claimed[index] = min(self.claimed[index], self.free[index])
            if share.speeds.is_own[index]:
                key = (request.pool, request.user)
                self._of_user[key] = self._of_user.get(key, 0) + 1

    def _room(self, share: JobShare, *, is_lent: bool) -> int:
        """How many devices more the job may be given."""
        request = share.job.request
        room = request.most_devices - share.count
        limit = self._limits.get(request.pool, 0)
        if limit and not (is_lent and request.is_shrinkable):
            room = min(room, limit - self._of_user.get((request.pool, request.user), 0))
        if not share.count and request.array_limit:
            room *= self._of_array.get(request.array, 0) < request.array_limit
        return room

    def _best(self, share: JobShare, *, is_lent: bool, may_claim: bool) -> tuple[float, list[int]]:
        """What serves the job most next: gain per device, and classes; none: nothing does."""
        if not share.count:
            return self._start(share, is_lent=is_lent, may_claim=may_claim)
        if self._room(share, is_lent=is_lent) < 1:
            return 0.0, []
        best, where = self._next(share, is_lent=is_lent)
        if where < 0 and (any(share.speeds.links) or share.speeds.tried is not None):
            return self._leap(share, is_lent=is_lent)
        return share.urgency * best, [where] if where >= 0 else []

    def _next(self, share: JobShare, *, is_lent: bool) -> tuple[float, int]:
        """What one more device brings a job that has some, and its class; -1: it brings nothing."""
        settings, speeds, given, current = self._settings, share.speeds, share.given, share.current
        doublings, ring = LOG2[share.count + 1], RING[share.count + 1]
        kinds, before, hidden = share.kinds, share.rate, share.job.request.hidden_ratio
        has_links, tried = any(speeds.links), speeds.tried
        best, where = 0.0, -1
        for index, free in enumerate(self.free):
            speed = speeds.speeds[index]
            if not (free and speed and (is_lent or speeds.is_own[index])):
                continue
            total = share.total + speed
            if len(kinds) > 1 or self._kinds[index] not in kinds:
                total *= BALANCED_RATIO
            slowest = max(share.communication, speeds.communication[index])
            ratio = slowest * total * doublings  # as rate_of, where most time goes
            if has_links:
                ratio += share.link_with(index) * total * ring
            rate = total / (1.0 + max(0.0, ratio - hidden))
            if tried is not None:
                rate = share.rate_with(index, self._kinds[index])
            gain = rate - before
            if gain > best and given[index] >= current[index]:  # it has to join first
                seconds = min(settings.horizon_seconds, share.remaining_seconds / rate)
                working = max(0.0, seconds - settings.start_seconds)
                gain = (gain * working - rate * settings.pause_seconds) / seconds
            if gain > best:
                best, where = gain, index
        return best, where

    def _leap(self, share: JobShare, *, is_lent: bool) -> tuple[float, list[int]]:
        """The same of several devices, where the first of them costs more than it brings."""
        speeds, links = share.speeds.speeds, share.speeds.links
        usable = [i for i, s in enumerate(speeds) if s and (is_lent or share.speeds.is_own[i])]
        usable.sort(key=lambda index: (links[index], -speeds[index]))
        value, chosen = self._grown(share, usable, self._room(share, is_lent=is_lent))
        gain = value - self._value(share, share.given)
        if gain <= NO_GAIN:
            return 0.0, []
        return share.urgency * gain / len(chosen), chosen

    def _start(self, share: JobShare, *, is_lent: bool, may_claim: bool) -> tuple[float, list[int]]:
        """The same of a job that has nothing yet."""
        chosen = self._fewest(share, is_lent=is_lent, may_claim=may_claim)
        if not chosen:
            return 0.0, []
        rate = share.rate_of_all(chosen, self._kinds)
        if share.job.devices:  # else it would have to be started anew
            rate *= 1.0 + self._settings.restart_seconds / self._settings.horizon_seconds
        return share.urgency * rate / len(chosen), chosen

    def _fewest(self, share: JobShare, *, is_lent: bool, may_claim: bool) -> list[int]:
        """Classes of the fastest of the fewest devices that the job runs on; empty: not there.

        Where links or sets of nodes were measured: of those that will be fastest with all that the
        job may have.
        """
        number = share.job.request.min_devices
        if self._room(share, is_lent=is_lent) < number:
            return []
        stays = 1.0 - min(1.0, self._settings.start_seconds / self._settings.horizon_seconds)
        offers = []
        for index, speed in enumerate(share.speeds.speeds):
            if speed and (is_lent or share.speeds.is_own[index]):
                free = self.free[index] - (0 if may_claim else self.claimed[index])
                kept = min(free, share.current[index])
                offers += [(speed, index)] * min(number, kept)
                offers += [(speed * stays, index)] * min(number, free - kept)
        if len(offers) < number:
            return []
        if share.job.request.most_devices == 1:  # it leaves the good links to who needs them
            offers.sort(key=lambda offer: -self.table.classes[offer[1]].link_seconds)
        offers.sort(key=lambda offer: -offer[0])
        is_known = any(share.speeds.links) or share.speeds.tried is not None
        if is_known and share.job.request.most_devices > 1:
            offers = self._best_of(share, offers, is_lent=is_lent)
        return [index for _, index in offers[:number]]

    def _best_of(
        self, share: JobShare, offers: list[tuple[float, int]], *, is_lent: bool
    ) -> list[tuple[float, int]]:
        """Leave out slow links, all nodes but one or but a set that was tried, if that is faster.

        Args:
            share: Of the job, which has nothing yet.
            offers: Speeds and classes of devices that it may start on, the fastest first.
            is_lent: As for `distribute`.

        Returns:
            Some of the offers, at least as many as it needs.
        """
        links = share.speeds.links
        most = self._room(share, is_lent=is_lent)
        found, best = offers, -1.0
        groups = [[o for o in offers if links[o[1]] <= limit] for limit in sorted(set(links))]
        groups += self._of_one_node(share, offers)
        if (tried := share.speeds.tried) is not None:
            groups += [[o for o in offers if o[1] in some] for some in tried.sets[:MAX_TRIED]]
        for some in groups:
            if len(some) < share.job.request.min_devices:
                continue
            classes = dict.fromkeys(index for _, index in some)  # the fastest first
            value, _ = self._grown(share, classes, most)
            if value > best * (1.0 + NO_GAIN):
                found, best = some, value
        return found

    def _of_one_node(
        self, share: JobShare, offers: Iterable[tuple[float, int]]
    ) -> list[list[tuple[float, int]]]:
        """The offers of each node, by its name; of nodes that are alike those of the first one."""
        by_node: dict[str, list[tuple[float, int]]] = {}
        for offer in offers:
            by_node.setdefault(self.table.nodes[offer[1]], []).append(offer)
        by_node.pop("", None)
        found: dict[tuple[object, ...], list[tuple[float, int]]] = {}
        for _, some in sorted(by_node.items()):
            places = {index: place for place, (_, index) in enumerate(some)}
            alike = tuple(
                (speed, places[i], self._kinds[i], self.free[i], share.current[i])
                for speed, i in some
            )
            found.setdefault(alike, some)
        return list(found.values())

    def _grown(self, share: JobShare, classes: Iterable[int], most: int) -> tuple[float, list[int]]:
        """The best value of what it has been given and so many more devices of some classes.

        Args:
            share: Of the job.
            classes: Of which it takes all that are free, one class after the other.
            most: Devices that it may have beside those that it has been given.

        Returns:
            The value, and the classes of the devices that are added for it.
        """
        chosen = [index for index in classes for _ in range(min(most, self.free[index]))][:most]
        grown = JobShare(share.job, self.table, share.urgency, share.remaining_seconds)
        for index, number in enumerate(share.given):
            for _ in range(number):
                grown.give(index, self._kinds[index])
        best, num_best = 0.0, 0
        for number, index in enumerate(chosen, start=1):
            grown.give(index, self._kinds[index])
            if grown.count >= share.job.request.min_devices and grown.rate > best:
                value = self._value(share, grown.given)
                if value > best:
                    best, num_best = value, number
        return best, chosen[:num_best]
