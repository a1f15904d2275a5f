"""Devices that are alike for every job: counted, not named, so that a plan weighs few choices.

A job's share in a plan is so many of each class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest, QueuedJob
from hetero_hvd.core.queue.measured.link_book import LinkCosts
from hetero_hvd.core.queue.measured.tried_rates import Counts, TriedRates
from hetero_hvd.core.queue.set_rate import rate_of


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceClass:
    """Devices of one pool, kind, size, link and, where that matters, node.

    Attributes:
        node: That they are all in; empty: nothing is said of it by name, and each that has a link
            of its own is in another one.
        devices: Those that may be leased, by name.
        relative_speed: See `QueueDevice`.
        link_seconds: What the link of their node costs for each byte, see `LinkCosts`; 0: nothing
            that is known.
    """

    pool: str
    kind: str
    node: str
    memory_bytes: int
    is_guest: bool
    relative_speed: float
    link_seconds: float
    devices: tuple[QueueDevice, ...]


@dataclass(frozen=True, slots=True)
class ClassSpeeds:
    """What the classes are to one job. Speeds are relative to the fastest kind that it may use.

    Attributes:
        speeds: Each class's speed; 0: the job may not use it.
        is_own: Whether a class is of the job's own pool, and not lent to it.
        communication: See `set_rate`, of speeds instead of rates.
        links: The same of measured links, for what the job reduces.
        best_rate: Of the fastest, in the job's units per second; 0: it can run nowhere.
        tried: What a trial says of sets of them; None: there is none.
    """

    speeds: tuple[float, ...]
    is_own: tuple[bool, ...]
    communication: tuple[float, ...]
    links: tuple[float, ...]
    best_rate: float
    tried: TriedRates | None = None


class ClassTable:
    """The classes of all devices that may be leased now.

    Args:
        devices: All of the cluster.
        pools: Name to pool.
        named: Nodes of which something is said by name: a job's needs, or a trial.
        links: What is known of the nodes' links.
    """

    def __init__(
        self,
        devices: Sequence[QueueDevice],
        pools: Mapping[str, DevicePool],
        *,
        named: Collection[str] = (),
        links: LinkCosts = LinkCosts({}),  # noqa: B008 - it cannot be changed
    ) -> None:
        self.links = links
        groups: dict[tuple[float, str, str, str, int, bool, float], list[QueueDevice]] = {}
        ready = [each for each in devices if each.condition == "ready"]
        on_node = Counter(each.node for each in ready)
        for each in ready:
            link = links.of(each.node)
            is_several = link > 0 and on_node[each.node] > 1  # they need no link among themselves
            node = each.node if each.node in named or is_several else ""
            key = (link, each.pool, each.kind, node, each.memory_bytes, each.is_guest)
            groups.setdefault((*key, each.relative_speed), []).append(each)
        self.classes = tuple(
            DeviceClass(
                pool=pool,
                kind=kind,
                node=node,
                memory_bytes=memory,
                is_guest=is_guest,
                relative_speed=speed,
                link_seconds=link,
                devices=tuple(found),
            )
            # Of what else is equal the first is taken: the better link.
            for (link, pool, kind, node, memory, is_guest, speed), found in sorted(
                groups.items(), key=lambda group: group[0][0]
            )
        )
        self.class_of = {
            each.device: index for index, group in enumerate(self.classes) for each in group.devices
        }
        self.kinds = tuple(group.kind for group in self.classes)
        self.nodes = tuple(group.node for group in self.classes)
        self.total_speed = sum(len(g.devices) * g.relative_speed for g in self.classes)
        self._pools = pools
        self._speeds: dict[str, tuple[JobRequest, ClassSpeeds]] = {}

    def speeds_for(self, request: JobRequest) -> ClassSpeeds:
        """What the classes are to a job; computed once for each."""
        known = self._speeds.get(request.job)
        if known is None or known[0] is not request:
            known = self._speeds[request.job] = (request, self._speeds_for(request))
        return known[1]

    def forget(self, job: str) -> None:
        """Keep nothing for a job that has ended."""
        self._speeds.pop(job, None)

    def _speeds_for(self, request: JobRequest) -> ClassSpeeds:
        known = self._rates_of(request)
        usual = self._scale(known)
        rates = [
            known.get(group.kind, group.relative_speed * usual) * self._may_use(request, group)
            for group in self.classes
        ]
        best = max(rates, default=0.0)
        scale = 1.0 / best if best else 0.0
        tried = request.trial and best and TriedRates(request.trial, self.nodes, best)
        return ClassSpeeds(
            tuple(rate * scale for rate in rates),
            tuple(group.pool == request.pool for group in self.classes),
            tuple(
                request.communication_seconds.get(group.kind, 0.0) * best for group in self.classes
            ),
            tuple(request.bytes_per_unit * group.link_seconds * best for group in self.classes),
            best,
            tried or None,
        )

    def _rates_of(self, request: JobRequest) -> Mapping[str, float]:
        """Kind to a device's rate; what jobs have not measured is what nodes did in a trial alone.

        Where no node was alone, all kinds did in proportion to what is said of them.
        """
        known, trial = dict(request.expected_rates), request.trial
        if trial is None:
            return known
        speeds = trial.speeds
        groups = [group for group in self.classes if group.node in trial.workers]
        alone: dict[str, list[float]] = {}
        for group in groups:
            if (found := speeds.get(frozenset([group.node]))) is not None:
                rate = found.samples_per_second / trial.workers[group.node]
                alone.setdefault(group.kind, []).append(rate)
        known = {kind: sum(rates) / len(rates) for kind, rates in alone.items()} | known
        if not known and trial.placements:
            most = max(trial.placements, key=lambda each: len(each.nodes))
            there = [group for group in groups if group.node in most.nodes]
            total = sum(trial.workers[group.node] * group.relative_speed for group in there)
            for group in there:
                known[group.kind] = most.samples_per_second * group.relative_speed / total
        return known

    def _lends(self, pool: str) -> bool:
        return pool not in self._pools or self._pools[pool].lends

    def _may_use(self, request: JobRequest, group: DeviceClass) -> bool:
        """Whether a job may have devices of a class.

        What cannot shrink uses its own pool only, and no guest: it could not be taken back.
        """
        if group.pool != request.pool and not (request.is_shrinkable and self._lends(group.pool)):
            return False
        if group.is_guest and not request.is_shrinkable:
            return False
        node = group.devices[0].node
        return all(
            need.is_met_by(memory_bytes=group.memory_bytes, kind=group.kind, node=node)
            for need in request.needs
        )

    def _scale(self, known: Mapping[str, float]) -> float:
        """Units per second of a device of relative speed 1, from the kinds that are measured."""
        ratios = [
            known[group.kind] / group.relative_speed
            for group in self.classes
            if known.get(group.kind, 0.0) > 0
        ]
        return sum(ratios) / len(ratios) if ratios else 1.0


class JobShare:
    """What one job is given in a plan.

    Attributes:
        job: The job.
        urgency: Its weight / remaining seconds on the fastest device.
        speeds: What the classes are to it.
        current: Devices that it has now, of each class.
        given: Devices that this plan gives it, of each class.
        count: Sum of these.
        node: The one that all of them are in; empty: they are in several, or none is given.
        link: Of the slowest of their nodes; it counts if they are in several.
        rate: What it does with them, relative to one device of the fastest kind.
    """

    __slots__ = (
        "class_kinds", "communication", "count", "current", "given", "job", "kinds", "link",
        "node", "nodes", "rate", "remaining_seconds", "speeds", "total", "urgency",
    )  # fmt: skip

    def __init__(
        self, job: QueuedJob, table: ClassTable, urgency: float, remaining_seconds: float
    ) -> None:
        self.job = job
        self.urgency = urgency
        self.remaining_seconds = remaining_seconds
        self.speeds: ClassSpeeds = table.speeds_for(job.request)
        self.current = [0] * len(table.classes)
        for device in job.devices:
            index = table.class_of.get(device)
            if index is not None:
                self.current[index] += 1
        self.given = [0] * len(table.classes)
        self.count = 0
        self.total = 0.0
        self.communication = 0.0
        self.node = ""
        self.nodes = table.nodes
        self.class_kinds = table.kinds
        self.link = 0.0
        self.kinds: set[str] = set()
        self.rate = 0.0

    def rate_with(self, index: int, kind: str) -> float:
        """Its rate with a device of a class more."""
        if self.speeds.tried is not None:
            after = list(self.given)
            after[index] += 1
            return self.rate_of_counts(after, self.class_kinds)
        total = self.total + self.speeds.speeds[index]
        slowest = max(self.communication, self.speeds.communication[index])
        is_mixed = len(self.kinds) > 1 or (self.count > 0 and kind not in self.kinds)
        return rate_of(
            total,
            slowest,
            self.count + 1,
            is_mixed=is_mixed,
            link_seconds=self.link_with(index),
            hidden_ratio=self.job.request.hidden_ratio,
        )

    def link_with(self, index: int) -> float:
        """What the slowest link costs that it uses with a device of a class more."""
        if not self.count or (self.node and self.node == self.nodes[index]):
            return 0.0
        return max(self.link, self.speeds.links[index])

    def rate_of_counts(self, given: Sequence[int], kinds: Sequence[str]) -> float:
        """Its rate with so many devices of each class alone."""
        rate, tried = self._by_formula(given, kinds), self.speeds.tried
        if tried is None or not rate:
            return rate

        def formula(counts: Counts) -> float:
            return self._by_formula(counts, kinds)

        return tried.rate(given, rate, formula)

    def rate_of_all(self, chosen: Sequence[int], kinds: Sequence[str]) -> float:
        """Its rate with these classes' devices alone."""
        counts = [0] * len(self.given)
        for index in chosen:
            counts[index] += 1
        return self.rate_of_counts(counts, kinds)

    def _by_formula(self, given: Sequence[int], kinds: Sequence[str]) -> float:
        classes = [index for index, number in enumerate(given) if number]
        if not classes:
            return 0.0
        total = sum(self.speeds.speeds[index] * given[index] for index in classes)
        number = sum(given)
        slowest = max(self.speeds.communication[index] for index in classes)
        is_mixed = len({kinds[index] for index in classes}) > 1
        is_within = self._node_of(classes) or number == 1
        return rate_of(
            total,
            slowest,
            number,
            is_mixed=is_mixed,
            link_seconds=0.0 if is_within else max(self.speeds.links[i] for i in classes),
            hidden_ratio=self.job.request.hidden_ratio,
        )

    def _node_of(self, classes: Iterable[int]) -> str:
        """The one node of all of them; empty: there are several, or it is not told."""
        nodes = {self.nodes[index] for index in classes}
        return nodes.pop() if len(nodes) == 1 else ""

    def swap(self, here: int, there: int) -> None:
        """Take a device of one class instead of one of another; nothing is given to it later."""
        self.given[here] -= 1
        self.given[there] += 1

    def take(self, index: int, kinds: Sequence[str]) -> None:
        """Take a device of a class away again."""
        self.given[index] -= 1
        chosen = [i for i, number in enumerate(self.given) for _ in range(number)]
        self.count = len(chosen)
        self.total = sum(self.speeds.speeds[i] for i in chosen)
        self.communication = max((self.speeds.communication[i] for i in chosen), default=0.0)
        self.link = max((self.speeds.links[i] for i in chosen), default=0.0)
        self.node = self._node_of(chosen)
        self.kinds = {kinds[i] for i in chosen}
        self.rate = self.rate_of_counts(self.given, kinds)

    def give(self, index: int, kind: str) -> None:
        """Give it a device of a class."""
        self.rate = self.rate_with(index, kind)
        if not self.count or self.node != self.nodes[index]:
            self.node = "" if self.count else self.nodes[index]
        self.link = max(self.link, self.speeds.links[index])
        self.total += self.speeds.speeds[index]
        self.communication = max(self.communication, self.speeds.communication[index])
        self.kinds.add(kind)
        self.count += 1
        self.given[index] += 1
