"""Which announced nodes are there: one entry for each machine, with a hold-down. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hetero_hvd.discovery.advert import LIFETIME_SECONDS, Advert

HOLD_DOWN_SECONDS = 15.0
"""After an advert's expiry: a network that hiccups must not cost a node its workers."""

ABSENT_SECONDS = 2.0
"""An agent that was started anew has lost its workers: for two looks of the driver it is not there,
so that they are let go and started with a clean record."""

MAX_FORMER = 16
"""Agents of a machine that are remembered, to see that one of them still lives."""


@dataclass(frozen=True)
class CountingAgent:
    """Of the agents with one identity, the one that was started last.

    They are on one machine, or one is on a copy of it that runs.

    Attributes:
        advert: Its newest.
        former: Instances of those that counted before it, the last ones.
    """

    advert: Advert
    former: tuple[bytes, ...] = ()

    def after(self, advert: Advert) -> CountingAgent | None:
        """Which one counts once an advert came; None: still this one, of which that is not.

        Agents tell when they were started. Where one does not, or both say the same, the one that
        is heard of first later counts as started later; and so does one of a machine that was
        booted since. A good-bye is that of its own agent only: it lets any other one count.

        Args:
            advert: Genuine and new, of the identity.
        """
        if advert.instance == self.advert.instance:
            return replace(self, advert=advert)
        if advert.leaves or not (self.advert.leaves or self._is_before(advert)):
            return None
        former = (*self.former, self.advert.instance)[-MAX_FORMER:]
        return CountingAgent(advert, former)

    def _is_before(self, advert: Advert) -> bool:
        one, other = self.advert.started_at_seconds, advert.started_at_seconds
        if self.advert.machine == advert.machine and one and other and one != other:
            return one < other
        return advert.instance not in self.former


@dataclass(frozen=True)
class _Sighting:
    agent: CountingAgent
    seen_at_seconds: float
    counts_from_seconds: float

    @property
    def advert(self) -> Advert:
        return self.agent.advert


class NodeRegistry:
    """The nodes that announce themselves.

    A machine is one node, whatever names it used: its newest advert counts. Of two machines with
    one name, or with a GPU in common (a container and its host), the first stays; but one that has
    both name and address of another is that other, booted anew. Of two agents with one identity
    see `CountingAgent`.

    Attributes:
        conflicts: Adverts not used because somebody else has their name, GPU or identity.
    """

    def __init__(self) -> None:
        self.conflicts = 0
        self._sightings: dict[str, _Sighting] = {}

    def heard(self, advert: Advert, *, now_seconds: float) -> str | None:
        """A genuine, new advert came.

        Args:
            advert: What it said.
            now_seconds: Monotonic.

        Returns:
            Why it is not used, if it is in conflict with another one.
        """
        earlier = self._sightings.get(advert.machine) or self._before_boot(advert)
        agent = CountingAgent(advert) if earlier is None else earlier.agent.after(advert)
        if advert.leaves and (earlier is None or agent is None):
            return None
        if agent is None:
            self.conflicts += 1
            return in_conflict(advert)
        for machine, other in self._sightings.items():
            is_other = machine != advert.machine and other is not earlier
            if is_other and not advert.leaves and _collide(other.advert, advert):
                self.conflicts += 1
                return f"another machine has the name or a GPU of {advert.name}"
        if earlier is None:
            counts_from = now_seconds
        elif earlier.advert.instance == advert.instance:
            counts_from = earlier.counts_from_seconds
        else:
            away_since = earlier.seen_at_seconds if earlier.advert.leaves else now_seconds
            counts_from = away_since + ABSENT_SECONDS
        if earlier is not None:
            del self._sightings[earlier.advert.machine]
        self._sightings[advert.machine] = _Sighting(agent, now_seconds, counts_from)
        return None

    def _before_boot(self, advert: Advert) -> _Sighting | None:
        """What is known of a node from before its machine was booted anew."""
        for other in self._sightings.values():
            is_same_place = not set(other.advert.addresses).isdisjoint(advert.addresses)
            if is_same_place and other.advert.name == advert.name and not other.advert.leaves:
                return other
        return None

    def present(self, *, now_seconds: float) -> tuple[Advert, ...]:
        """The nodes that are there, in the order of their names."""
        gone = LIFETIME_SECONDS + HOLD_DOWN_SECONDS
        self._sightings = {
            machine: sighting
            for machine, sighting in self._sightings.items()
            if now_seconds - sighting.seen_at_seconds <= gone
        }
        adverts = (
            sighting.advert
            for sighting in self._sightings.values()
            if sighting.counts_from_seconds <= now_seconds and not sighting.advert.leaves
        )
        return tuple(sorted(adverts, key=lambda advert: advert.name))


def in_conflict(advert: Advert) -> str:
    """Why an advert is not used, where another agent of its identity counts."""
    named = f"the identity of the machine of {advert.name}"
    return f"another agent has {named} and counts, as it was started later: a machine is one node"


def _collide(there: Advert, advert: Advert) -> bool:
    is_same = there.name == advert.name or not set(there.devices).isdisjoint(advert.devices)
    return is_same and not there.leaves
