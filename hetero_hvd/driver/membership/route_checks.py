"""Whether the workers reach each other as Gloo will need it: asked of them, pair by pair.

Of two machines, Gloo has the one with the numerically higher address connect to the other, at a
port that the kernel there has chosen (`gloo/transport/tcp/pair.cc`, `Pair::connect`); NCCL connects
both ways. One worker of a machine is asked; what fails is tried once more before it counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import combinations

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
"""At least so long between two looks at the routes among members."""

REMEDY = (
    "Gloo connects all nodes with each other: open TCP ports {first}-{last} of {target} to "
    "{caller}, name the right interface in nodes.yaml, or join both to a tunnel "
    "(docs/guide/discovery.md)"
)

Place = tuple[str, str]
"""The identity of a machine, and its address for Gloo."""


@dataclass(frozen=True, kw_only=True)
class _End:
    """A worker that may be reached.

    Attributes:
        slot: Of the worker.
        ready: What it has said of itself.
        gloo: Where it can be tried.
        place: Where that is.
    """

    slot: Slot
    ready: Ready
    gloo: GlooAddress
    place: Place


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
        on_broken: Called when a route turns out to be broken.
    """

    def __init__(
        self,
        send: Callable[[str, FromDriver], bool],
        *,
        on_known: Callable[[Slot, Ready], None],
        on_broken: Callable[[], None],
    ) -> None:
        self._send = send
        self._on_known = on_known
        self._on_broken = on_broken
        self._ends: dict[str, _End] = {}
        self._routes: dict[tuple[Place, Place], _TriedRoute] = {}
        self._waiting: dict[str, set[tuple[Place, Place]]] = {}

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
        end = _End(slot=slot, ready=ready, gloo=ready.gloo, place=place)
        needed: dict[tuple[Place, Place], tuple[_End, _End]] = {}
        for other in self._ends.values():
            needed |= dict(_directions(end, other))
        self._ends[slot.host] = end
        for key, (caller, target) in needed.items():
            route = self._routes.get(key)
            if route is None or _is_unknown(route, slot.host, now_seconds):
                self._ask(key, caller.slot.host, target.slot.host, now_seconds)
        self._waiting[slot.host] = {key for key in needed if self._routes[key].is_open}
        self._release()

    def check_again(self, slots: Iterable[Slot], now_seconds: float) -> None:
        """Have the routes among members tried, which does not get on; nobody waits for it."""
        ends = [self._ends[slot.host] for slot in slots if slot.host in self._ends]
        for one, other in combinations(ends, 2):
            for key, (caller, target) in _directions(one, other):
                route = self._routes.get(key)
                since = now_seconds - route.asked_at_seconds if route else AGAIN_SECONDS
                if since >= AGAIN_SECONDS and not (route and route.is_open):
                    self._ask(key, caller.slot.host, target.slot.host, now_seconds)

    def told(self, caller: str, answer: RouteTold, now_seconds: float) -> None:
        """A worker has tried to reach another one."""
        for route in list(self._routes.values()):
            if (route.caller, route.target) == (caller, answer.host) and route.is_open:
                if answer.fault and not route.is_second:
                    route.is_second = True
                    route.again_at_seconds = now_seconds + SECOND_TRY_SECONDS
                elif route.again_at_seconds is None:
                    self._settle(route, answer.fault)
        self._release()

    def look(self, now_seconds: float) -> None:
        """Begin second tries, and wait no more for who does not answer. Call it often."""
        for key, route in list(self._routes.items()):
            again_at = route.again_at_seconds
            if again_at is not None and now_seconds >= again_at:
                route.again_at_seconds = None
                route.asked_at_seconds = now_seconds
                self._question(route, self._ends[route.target].gloo)
            elif route.is_open and now_seconds - route.asked_at_seconds > ANSWER_SECONDS:
                logger.warning("routes: %s does not say whether it reaches %s", *_names(key))
                self._settle(route, "")
        self._release()

    def forget(self, host: str, now_seconds: float) -> None:
        """A worker is gone; what it had a part in is asked of another one of its machine."""
        self._waiting.pop(host, None)
        self._ends.pop(host, None)
        by_place = {end.place: end.slot.host for end in self._ends.values()}
        for key, route in list(self._routes.items()):
            if not by_place.keys() >= set(key):
                del self._routes[key]
            elif route.is_open and host in (route.caller, route.target):
                self._ask(key, by_place[key[0]], by_place[key[1]], now_seconds)
        self._release()

    def why_not(self, slot: Slot, others: Iterable[Slot]) -> str | None:
        """Why a worker cannot take part with these others, in words; None if it can."""
        for other in others:
            if fault := self._fault_between(slot, other):
                return fault
        return None

    def apart(self, slots: Iterable[Slot]) -> dict[WorkerId, str]:
        """Which of these workers have to stay out, so that the others reach each other, and why."""
        places: dict[str, list[Slot]] = {}
        for slot in slots:
            end = self._ends.get(slot.host)
            places.setdefault(str(end.place if end else slot.host), []).append(slot)
        faults: dict[tuple[str, str], str] = {}
        for one, other in combinations(places, 2):
            if fault := self._fault_between(places[one][0], places[other][0]):
                faults[one, other] = fault
        out = left_out({place: len(found) for place, found in places.items()}, faults)
        why: dict[str, str] = {}
        for pair, fault in faults.items():
            for place, other in (pair, pair[::-1]):
                if place in out and (place not in why or other not in out):
                    why[place] = fault
        return {slot.worker: why[place] for place in out for slot in places[place]}

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

    def _ask(self, key: tuple[Place, Place], caller: str, target: str, now_seconds: float) -> None:
        before = self._routes.get(key)
        route = _TriedRoute(caller=caller, target=target, asked_at_seconds=now_seconds)
        route.fault = before.fault if before else ""
        self._routes[key] = route
        self._question(route, self._ends[target].gloo)

    def _question(self, route: _TriedRoute, gloo: GlooAddress) -> None:
        self._send(route.caller, RouteAsked(host=route.target, gloo=gloo))

    def _settle(self, route: _TriedRoute, fault: str) -> None:
        route.is_open = False
        route.fault = fault
        if fault:
            self._on_broken()

    def _release(self) -> None:
        """Those whose routes are known need not wait any more."""
        for host, keys in list(self._waiting.items()):
            is_open = any(key in self._routes and self._routes[key].is_open for key in keys)
            if not is_open and self._waiting.pop(host, None) is not None:
                end = self._ends[host]
                self._on_known(end.slot, end.ready)


def _directions(one: _End, other: _End) -> Iterator[tuple[tuple[Place, Place], tuple[_End, _End]]]:
    """Who has to reach whom of two workers: places and ends, caller first; nobody on one machine.

    Where both have one address on two machines, the port decides: neither will reach the other.
    """
    if one.place[0] == other.place[0]:
        return
    low, high = sorted((one, other), key=lambda end: (ip_address(end.gloo.address), end.place))
    yield (high.place, low.place), (high, low)
    if all(end.ready.versions.get("reduction") == NCCL for end in (one, other)):
        yield (low.place, high.place), (low, high)


def _is_unknown(route: _TriedRoute, host: str, now_seconds: float) -> bool:
    """Whether to ask anew: the answer is old, or this worker's channel broke before it came."""
    if route.is_open:
        return route.caller == host
    return now_seconds - route.asked_at_seconds >= FRESH_SECONDS


def _names(key: tuple[Place, Place]) -> tuple[str, str]:
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
