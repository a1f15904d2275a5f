"""In which form a scraper is told metrics: that for which its Accept header asks."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


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
    encode, media = choose_encoder(accept)
    return Exposition(encode(registry), media)
