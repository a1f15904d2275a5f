"""Whether the workers reach each other as Gloo will need it: asked of them, pair by pair.

Of two machines, Gloo has the one with the numerically higher address connect to the other, at a
port that the kernel there has chosen (`gloo/transport/tcp/pair.cc`, `Pair::connect`); NCCL connects
both ways. One worker of a machine is asked; what fails is tried once more before it counts.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import combinations
from math import inf

from hetero_hvd.core.full_mesh import left_out
from hetero_hvd.core.versions import NCCL
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import FromDriver, GlooAddress, Ready, RouteAsked, RouteTold, WorkerId

logger = logging.getLogger(__name__)

SECOND_TRY_SECONDS = 1.0
"""After the first one, which may have met a worker that was just ending."""

ANSWER_SECONDS = 15.0
"""For the worker that was asked; if it says nothing, nothing is known, and nobody is refused."""

FRESH_SECONDS = 30.0
"""So long an answer counts for other workers of the same two machines."""

AGAIN_SECONDS = 5.0
"""At least so long between two rounds of tries among members."""

REMEDY = (
    "Gloo connects all nodes with each other: open TCP ports {first}-{last} of {target} to "
    "{caller}, name the right interface in nodes.yaml, or join both to a tunnel "
    "(docs/guide/discovery.md)"
)

Place = tuple[str, str]
"""The identity of a machine, and its address for Gloo."""

Way = tuple[Place, Place]
"""From the one to the other. There are as many as pairs of machines: what comes for each answer,
or several times a second, looks at those that it is about."""


@dataclass(frozen=True, kw_only=True)
class _End:
    """A worker that may be reached.

    Attributes:
        slot: Of the worker.
        ready: What it has said of itself.
        gloo: Where it can be tried.
        place: Where that is.
        rank: By which Gloo decides which of two calls the other.
    """

    slot: Slot
    ready: Ready
    gloo: GlooAddress
    place: Place
    rank: tuple[int, int, Place]


@dataclass(eq=False, kw_only=True)
class _TriedRoute:
    """The way from one place to another, as far as it is known.

    Attributes:
        caller: Horovod host of the worker that is asked, or was.
        target: Horovod host of the one that it tries to reach.
        asked_at_seconds: When a try began; monotonic.
        is_open: Whether an answer, or a second try, is waited for.
        is_second: Whether the first try has failed.
        again_at_seconds: When the second try is due; None: it is not.
        fault: Why there is no way; empty: there is one, as far as is known.
    """

    caller: str
    target: str
    asked_at_seconds: float
    is_open: bool = True
    is_second: bool = False
    again_at_seconds: float | None = None
    fault: str = ""


class RouteChecks:
    """The routes among all who are ready or about to be. Used in the loop's thread only.

    Args:
        send: Tells the worker with a host's name something; False: it has no channel now.
        on_known: Called with a worker of `check` once all its routes are known.
    """

    def __init__(
        self,
        send: Callable[[str, FromDriver], bool],
        *,
        on_known: Callable[[Slot, Ready], None],
    ) -> None:
        self._send = send
        self._on_known = on_known
        self._has_new_faults = False
        self._round_at_seconds = -inf
        self._ends: dict[str, _End] = {}
        self._routes: dict[Way, _TriedRoute] = {}
        self._open: dict[Way, None] = {}  # in their order
        self._ways_of: defaultdict[Place, set[Way]] = defaultdict(set)
        self._waiting: dict[str, set[Way]] = {}
        self._waiters: defaultdict[Way, set[str]] = defaultdict(set)
        self._released: list[str] = []

    def check(self, slot: Slot, ready: Ready, now_seconds: float) -> None:
        """Have the routes between a worker and all others tried; `on_known` follows, perhaps now.

        Args:
            slot: Of the worker.
            ready: What it has said of itself; again, if its channel broke meanwhile.
            now_seconds: Monotonic.
        """
        self._ends.pop(slot.host, None)
        if ready.gloo is None:  # nobody can try
            self._on_known(slot, ready)
            return
        place = (ready.machine_id or slot.worker.node, ready.gloo.address)
        address = ip_address(ready.gloo.address)
        rank = address.version, int(address), place
        end = _End(slot=slot, ready=ready, gloo=ready.gloo, place=place, rank=rank)
        needed: dict[Way, tuple[_End, _End]] = {}
        for other in self._ends.values():
            needed |= dict(_directions(end, other))
        self._ends[slot.host] = end
        for key, (caller, target) in needed.items():
            route = self._routes.get(key)
            if route is None or _is_unknown(route, slot.host, now_seconds):
                self._ask(key, caller.slot.host, target.slot.host, now_seconds)
        self._waiting[slot.host] = {key for key in needed if key in self._open}
        for key in self._waiting[slot.host]:
            self._waiters[key].add(slot.host)
        self._released.append(slot.host)
        self._release()

    def check_again(self, slots: Iterable[Slot], now_seconds: float) -> None:
        """Have the routes among members tried, which does not get on; nobody waits for it.

        All begin together, and none before all are known: there is a moment to judge them.
        """
        is_due = now_seconds - self._round_at_seconds >= AGAIN_SECONDS
        if not is_due or self._is_trying(places := self._by_place(slots)):
            return
        self._round_at_seconds = now_seconds
        for one, other in combinations(places.values(), 2):
            for key, (caller, target) in _directions(one[0], other[0]):
                self._ask(key, caller.slot.host, target.slot.host, now_seconds)

    def told(self, caller: str, answer: RouteTold, now_seconds: float) -> None:
        """A worker has tried to reach another one."""
        ends = self._ends.get(caller), self._ends.get(answer.host)
        if ends[0] is None or ends[1] is None:
            return
        key = ends[0].place, ends[1].place
        route = self._routes.get(key)
        if route is None or (route.caller, route.target) != (caller, answer.host):
            return
        if route.is_open and answer.fault and not route.is_second:
            route.is_second = True
            route.again_at_seconds = now_seconds + SECOND_TRY_SECONDS
        elif route.is_open and route.again_at_seconds is None:
            self._settle(key, answer.fault)
        self._release()

    def look(self, now_seconds: float) -> None:
        """Begin second tries, and wait no more for who does not answer. Call it often."""
        for key in list(self._open):
            route = self._routes[key]
            again_at = route.again_at_seconds
            if again_at is not None and now_seconds >= again_at:
                route.again_at_seconds = None
                route.asked_at_seconds = now_seconds
                if target := self._ends.get(route.target):
                    self._question(route, target.gloo)
                else:  # it has come again, and says no more where it listens
                    self._settle(key, "")
            elif now_seconds - route.asked_at_seconds > ANSWER_SECONDS:
                logger.warning("routes: %s does not say whether it reaches %s", *_names(key))
                self._settle(key, "")
        self._release()

    def forget(self, host: str, now_seconds: float) -> None:
        """A worker is gone; what it had a part in is asked of another one of its machine."""
        self._waiting.pop(host, None)
        gone = self._ends.pop(host, None)
        if gone is None:
            return
        by_place = {end.place: end.slot.host for end in self._ends.values()}
        for key in list(self._ways_of[gone.place]):
            route = self._routes[key]
            if not by_place.keys() >= set(key):
                self._drop(key)
            elif route.is_open and host in (route.caller, route.target):
                self._ask(key, by_place[key[0]], by_place[key[1]], now_seconds)
        self._release()

    def why_not(self, slot: Slot, others: Iterable[Slot]) -> str | None:
        """Why a worker cannot take part with these others, in words; None if it can."""
        for other in others:
            if fault := self._fault_between(slot, other):
                return fault
        return None

    def newly_apart(self, slots: Iterable[Slot]) -> dict[WorkerId, str] | None:
        """As `apart`, once after routes have turned out broken; None: there is nothing to judge.

        As long as a route among these is tried the others may only be a part of what is broken. A
        try is over after `ANSWER_SECONDS` at most.
        """
        slots = list(slots)
        if not self._has_new_faults or self._is_trying(self._by_place(slots)):
            return None
        self._has_new_faults = False
        return self.apart(slots)

    def apart(self, slots: Iterable[Slot]) -> dict[WorkerId, str]:
        """Which of these workers have to stay out, so that the others reach each other, and why."""
        places = self._by_place(slots)
        faults = {
            key: _in_words(places[key[0]][0], places[key[1]][0], route.fault)
            for key, route in self._routes.items()
            if route.fault and places.keys() >= set(key)
        }
        out = left_out({place: len(ends) for place, ends in places.items()}, faults)
        why: dict[Place, str] = {}
        for pair, fault in faults.items():
            for place, other in (pair, pair[::-1]):
                if place in out and (place not in why or other not in out):
                    why[place] = fault
        return {end.slot.worker: why[place] for place in out for end in places[place]}

    def _by_place(self, slots: Iterable[Slot]) -> dict[Place, list[_End]]:
        """Those of the workers that may be reached, in their order."""
        places: dict[Place, list[_End]] = {}
        for slot in slots:
            if (end := self._ends.get(slot.host)) is not None:
                places.setdefault(end.place, []).append(end)
        return places

    def _is_trying(self, places: Container[Place]) -> bool:
        """Whether a route among these is not known yet."""
        return any(key[0] in places and key[1] in places for key in self._open)

    def _fault_between(self, one: Slot, other: Slot) -> str:
        """What is wrong between the places of two workers, in words; empty if nothing is."""
        ends = self._ends.get(one.host), self._ends.get(other.host)
        if ends[0] is None or ends[1] is None:
            return ""
        for key, (caller, target) in _directions(ends[0], ends[1]):
            route = self._routes.get(key)
            if route is not None and route.fault:
                return _in_words(caller, target, route.fault)
        return ""

    def _ask(self, key: Way, caller: str, target: str, now_seconds: float) -> None:
        before = self._routes.get(key)
        route = _TriedRoute(caller=caller, target=target, asked_at_seconds=now_seconds)
        route.fault = before.fault if before else ""
        self._routes[key] = route
        self._open[key] = None
        for place in key:
            self._ways_of[place].add(key)
        self._question(route, self._ends[target].gloo)

    def _question(self, route: _TriedRoute, gloo: GlooAddress) -> None:
        self._send(route.caller, RouteAsked(host=route.target, gloo=gloo))

    def _settle(self, key: Way, fault: str) -> None:
        route = self._routes[key]
        route.is_open = False
        route.fault = fault
        self._has_new_faults |= bool(fault)
        self._close(key)

    def _drop(self, key: Way) -> None:
        """Nobody is left at one of its ends."""
        del self._routes[key]
        for place in key:
            self._ways_of[place].discard(key)
        self._close(key)

    def _close(self, key: Way) -> None:
        """Nobody waits for this one any more."""
        self._open.pop(key, None)
        for host in self._waiters.pop(key, ()):
            self._waiting.get(host, set()).discard(key)
            self._released.append(host)

    def _release(self) -> None:
        """Those whose routes are known need not wait any more."""
        while self._released:
            host = self._released.pop(0)
            if self._waiting.get(host) == set():
                del self._waiting[host]
                end = self._ends[host]
                self._on_known(end.slot, end.ready)


def _directions(one: _End, other: _End) -> Iterator[tuple[Way, tuple[_End, _End]]]:
    """Who has to reach whom of two workers: places and ends, caller first; nobody on one machine.

    Where both have one address on two machines, the port decides: neither will reach the other.
    """
    if one.place[0] == other.place[0]:
        return
    low, high = sorted((one, other), key=lambda end: end.rank)
    yield (high.place, low.place), (high, low)
    if all(end.ready.versions.get("reduction") == NCCL for end in (one, other)):
        yield (low.place, high.place), (low, high)


def _is_unknown(route: _TriedRoute, host: str, now_seconds: float) -> bool:
    """Whether to ask anew: the answer is old, or this worker's channel broke before it came."""
    if route.is_open:
        return route.caller == host
    return now_seconds - route.asked_at_seconds >= FRESH_SECONDS


def _names(key: Way) -> tuple[str, str]:
    return key[0][1], key[1][1]


def _in_words(caller: _End, target: _End, fault: str) -> str:
    names: Mapping[str, str] = {
        "caller": caller.slot.worker.node,
        "target": target.slot.worker.node,
    }
    first, last = target.gloo.ports
    what = (
        f"{names['caller']} ({caller.gloo.address}) cannot reach {names['target']} at "
        f"{target.gloo.address}, TCP port {target.gloo.port}: {fault}"
    )
    return f"{what}; {REMEDY.format(first=first, last=last, **names)}"
