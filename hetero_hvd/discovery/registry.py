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
class _Sighting:
    advert: Advert
    seen_at_seconds: float
    counts_from_seconds: float
    former: tuple[bytes, ...] = ()


class NodeRegistry:
    """The nodes that announce themselves.

    A machine is one node, whatever names it used: its newest advert counts. Of two machines with
    one name, or with a GPU in common (a container and its host), the first stays; but one that has
    both name and address of another is that other, booted anew. Of two agents with one identity,
    on one machine or on a copy of it that runs, the one that was started last stays.

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
        if earlier is not None and advert.instance in earlier.former:
            self.conflicts += 1
            return f"another agent has the identity of the machine of {advert.name}"
        if advert.leaves:
            if earlier is not None and earlier.advert.instance == advert.instance:
                del self._sightings[earlier.advert.machine]
            return None
        for machine, other in self._sightings.items():
            is_other = machine != advert.machine and other is not earlier
            if is_other and _collide(other.advert, advert):
                self.conflicts += 1
                return f"another machine has the name or a GPU of {advert.name}"
        if earlier is None:
            sighting = _Sighting(advert, now_seconds, now_seconds)
        elif earlier.advert.instance == advert.instance:
            sighting = replace(earlier, advert=advert, seen_at_seconds=now_seconds)
        else:
            former = (*earlier.former, earlier.advert.instance)[-MAX_FORMER:]
            counts_from = now_seconds + ABSENT_SECONDS
            sighting = _Sighting(advert, now_seconds, counts_from, former)
        if earlier is not None:
            del self._sightings[earlier.advert.machine]
        self._sightings[advert.machine] = sighting
        return None

    def _before_boot(self, advert: Advert) -> _Sighting | None:
        """What is known of a node from before its machine was booted anew."""
        for other in self._sightings.values():
            is_same_place = not set(other.advert.addresses).isdisjoint(advert.addresses)
            if is_same_place and other.advert.name == advert.name:
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
            if sighting.counts_from_seconds <= now_seconds
        )
        return tuple(sorted(adverts, key=lambda advert: advert.name))


def _collide(one: Advert, other: Advert) -> bool:
    return one.name == other.name or not set(one.devices).isdisjoint(other.devices)
