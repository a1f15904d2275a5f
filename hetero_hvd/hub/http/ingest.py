"""Samples of other programs: checked, limited for each source, stored as those of agents."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import msgspec

from hetero_hvd.core.recording.foreign import (
    IngestAllowance,
    IngestLimits,
    check_numbers,
    check_time,
    check_units,
    check_values,
)
from hetero_hvd.discovery.hub_link import SampleBatch
from hetero_hvd.errors import UserError
from hetero_hvd.hub.http.bodies import IngestBatch, Ingested
from hetero_hvd.hub.storage.store import NodeBatch, SampleStore
from hetero_hvd.messages import ForeignSampled
from hetero_hvd.run.web.operations import Answer, Asked
from hetero_hvd.run.web.problems import RequestProblem

MAX_SOURCES = 1000
"""Of all tokens: each has a stream of its own, also one that sends no series."""

Store = Callable[[NodeBatch], Awaitable[int]]


class ForeignIngest:
    """Takes batches. Used in the loop's thread only.

    Args:
        store: Of the hub.
        put: Stores a batch with others; gives the next number.
        clock: Monotonic.
        limits: Of each token.
    """

    def __init__(
        self,
        store: SampleStore,
        put: Store,
        clock: Callable[[], float],
        limits: IngestLimits | None = None,
    ) -> None:
        self._store = store
        self._put = put
        self._clock = clock
        self._limits = limits or IngestLimits()
        self._allowances: dict[str, IngestAllowance] = {}
        streams = store.streams()
        self._sources = {s.node for name, s in streams.items() if name == _stream(s.node)}

    @property
    def refused(self) -> dict[str, int]:
        """Requests of each token that were wrong or too much."""
        return {name: each.num_refused for name, each in self._allowances.items()}

    async def act(self, asked: Asked) -> Answer:
        """Store a batch.

        Raises:
            UserError: It is wrong; says why.
            OSError: The disk does not take it.
        """
        batch: IngestBatch = asked.body
        allowance = self._allowances.setdefault(asked.token, IngestAllowance(limits=self._limits))
        try:
            self._check(batch, allowance)
        except UserError:
            allowance.num_refused += 1
            raise
        wait = allowance.wait_seconds(len(batch.samples), asked.num_bytes, self._clock())
        if wait:
            allowance.num_refused += 1
            words = f"more than this token may send: wait {math.ceil(wait)} s, and send less"
            return Answer(RequestProblem(error=words), 429, {"Retry-After": str(math.ceil(wait))})
        allowance.series |= _series(batch)
        self._sources.add(batch.source)
        stream = _stream(batch.source)
        known = self._store.next_sequence(stream)
        sent = self._batch(batch, stream)
        next_sequence = await self._put(NodeBatch(batch.source, sent))
        duplicates = min(max(0, known - batch.first), len(batch.samples))
        return Answer(
            msgspec.to_builtins(Ingested(next_sequence=next_sequence, duplicates=duplicates))
        )

    def _check(self, batch: IngestBatch, allowance: IngestAllowance) -> None:
        check_units(batch.units)
        check_numbers(batch.first, len(batch.samples))
        num_series = len(allowance.series | _series(batch))
        if num_series > self._limits.max_series:
            raise UserError(
                f"{num_series} series, may be at most {self._limits.max_series} for a token"
            )
        if batch.source not in self._sources and len(self._sources) >= MAX_SOURCES:
            raise UserError(
                f"source {batch.source!r}: there are {MAX_SOURCES} already, which is the most; "
                "send by the name of one of them"
            )
        if self._store.is_of_an_agent(batch.source):
            raise UserError(
                f"source {batch.source!r}: is a node, whose agent tells of it; choose another name"
            )
        for sample in batch.samples:
            check_values(batch.units, sample.values)
            check_time(sample.at_unix_seconds, batch.sent_at_unix_seconds)

    def _batch(self, batch: IngestBatch, stream: str) -> SampleBatch:
        samples = [
            msgspec.msgpack.encode(
                ForeignSampled(
                    source=batch.source,
                    units={name: batch.units[name] for name in sample.values},
                    values=sample.values,
                )
            )
            for sample in batch.samples
        ]
        return SampleBatch(
            stream=stream,
            first=batch.first,
            times_seconds=[sample.at_unix_seconds for sample in batch.samples],
            samples=samples,
            offset_seconds=self._store.now_seconds() - batch.sent_at_unix_seconds,
            uncertainty_seconds=math.nan,
        )


def _series(batch: IngestBatch) -> set[str]:
    return {f"{batch.source}/{name}" for name in batch.units}


def _stream(source: str) -> str:
    """In which the samples of a program are."""
    return f"http-{source}"
