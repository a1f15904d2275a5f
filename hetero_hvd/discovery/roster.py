"""Which announced nodes are there: one entry for each machine, with a hold-down. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_hvd.discovery.advert import LIFETIME_SECONDS, Advert

HOLD_DOWN_SECONDS = 15.0
"""After an advert's expiry: a network that hiccups must not cost a node its workers."""

ABSENT_SECONDS = 2.0
"""An agent that was started anew has lost its workers: for two looks of the driver it is not there,
so that they are let go and started with a clean record."""


@dataclass(frozen=True)
class _Sighting:
    advert: Advert
    seen_at_seconds: float
    counts_from_seconds: float


class Roster:
    """The nodes that announce themselves.

    A machine is one node, whatever names it used: its newest advert counts. Of two machines with
    one name, or with a GPU in common (a container and its host), the first stays.

    Attributes:
        conflicts: Adverts not used because somebody else has their name or GPU.
    """

    def __init__(self) -> None:
        self.conflicts = 0
        self._sightings: dict[str, _Sighting] = {}

    def heard(self, advert: Advert, *, now_seconds: float) -> bool:
        """A genuine, new advert came.

        Args:
            advert: What it said.
            now_seconds: Monotonic.

        Returns:
            Whether it is used; not if it is in conflict with another machine's.
        """
        if advert.leaves:
            self._sightings.pop(advert.machine, None)
            return True
        for machine, other in self._sightings.items():
            if machine != advert.machine and _collide(other.advert, advert):
                self.conflicts += 1
                return False
        earlier = self._sightings.get(advert.machine)
        if earlier is None:
            counts_from = now_seconds
        elif earlier.advert.instance == advert.instance:
            counts_from = earlier.counts_from_seconds
        else:
            counts_from = now_seconds + ABSENT_SECONDS
        self._sightings[advert.machine] = _Sighting(advert, now_seconds, counts_from)
        return True

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
