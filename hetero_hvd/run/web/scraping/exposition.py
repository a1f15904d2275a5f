"""In which form a scraper is told metrics: that for which its Accept header asks."""

from __future__ import annotations

import re
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

VERSIONS = frozenset({"0.0.1", "0.0.4", "1.0.0"})
"""Of Prometheus' text and of OpenMetrics, as far as we write them. `choose_encoder` fails at what
is no version, and says of each later one that this is it."""

_NEVER = re.compile(r"0(\.0*)?")
"""A quality by which a form is ruled out."""


class Exposition(NamedTuple):
    """Metrics as they are told.

    Attributes:
        page: All of them.
        media: Content type of that: Prometheus' text, or OpenMetrics, which has exemplars.
    """

    page: bytes
    media: str


def exposition(registry: CollectorRegistry, accept: str = "") -> Exposition:
    """Tell what is in a registry.

    Args:
        registry: Of the metrics.
        accept: The scraper's header; empty: Prometheus' text.
    """
    encode, media = choose_encoder(",".join(filter(_is_possible, accept.split(","))))
    return Exposition(encode(registry), media)


def _is_possible(form: str) -> bool:
    """Whether a scraper takes a form that it names, and we have that version of it."""
    given = [part.strip().partition("=")[::2] for part in form.split(";")[1:]]
    return all(
        {"version": value in VERSIONS, "q": not _NEVER.fullmatch(value)}.get(name.lower(), True)
        for name, value in given
    )
