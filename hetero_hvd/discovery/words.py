"""What an advert says of its node, for people."""

from __future__ import annotations

from hetero_hvd.discovery.advert import Advert

_UNITS = (("matrix product ", 1e9, "GFLOP/s"), ("copy ", 1e9, "GB/s"))


def in_words(advert: Advert) -> str:
    """Its hardware, slots and version, and what was measured of it, in one line."""
    slots = f"{advert.slots} slot{'' if advert.slots == 1 else 's'}"
    figures = [figure_in_words(name, amount) for name, amount in advert.figures.items()]
    return "; ".join([f"{advert.summary}, {slots}, hetero_hvd {advert.version}", *figures])


def figure_in_words(name: str, per_second: float) -> str:
    """A benchmark figure with its unit: `matrix product float32 41.2 GFLOP/s`."""
    for start, one, unit in _UNITS:
        if name.startswith(start):
            return f"{name} {per_second / one:.3g} {unit}"
    return f"{name.partition(' ')[0]} {per_second:.3g} samples/s"
