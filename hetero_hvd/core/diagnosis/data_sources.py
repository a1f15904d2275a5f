"""Which source of data is waited for, where the wait for data is what limits a run."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

import msgspec

from hetero_hvd.messages import Finding, SourceRead, SourcesRead, WorkerId

NUM_MESSAGES = 5
"""Of each worker, some seconds apart, are judged together."""


class SourceWaits:
    """A fold over a run's events; deterministic."""

    def __init__(self) -> None:
        self._read: defaultdict[WorkerId, deque[SourcesRead]] = defaultdict(
            lambda: deque(maxlen=NUM_MESSAGES)
        )

    def observe(self, event: SourcesRead) -> None:
        """Take in what a worker tells."""
        self._read[event.worker].append(event)

    def named(self, finding: Finding) -> Finding:
        """The finding with the source that takes most of the wait, if it is about that.

        A straggler's is its own; what binds the run is that of all workers.
        """
        is_straggler = finding.kind == "straggler" and finding.cause == "input"
        if finding.is_past or not (is_straggler or finding.kind == "input"):
            return finding
        workers = [finding.worker] if finding.worker is not None else list(self._read)
        sums = added(event for worker in workers for event in self._read.get(worker, ()))
        total = sum(one.wait_seconds for one in sums.values())
        if total <= 0:
            return finding
        name, most = max(sums.items(), key=lambda item: item[1].wait_seconds)
        of_wait = most.wait_seconds / total
        decoding = most.decode_seconds / (most.read_seconds + most.decode_seconds)
        words = f"{finding.words}; {of_wait:.0%} of that wait is for {name}, of which decoding its "
        words += f"samples takes {decoding:.0%} and reading the rest"
        evidence = {"source_wait_ratio": of_wait, "source_decoding_ratio": decoding}
        return msgspec.structs.replace(
            finding, words=words, evidence={**finding.evidence, **evidence}
        )


def added(events: Iterable[SourcesRead]) -> dict[str, SourceRead]:
    """By source, what several messages tell together."""
    sums: dict[str, SourceRead] = {}
    for event in events:
        for name, found in event.sources.items():
            before = sums.get(name, SourceRead())
            sums[name] = SourceRead(
                wait_seconds=before.wait_seconds + found.wait_seconds,
                read_seconds=before.read_seconds + found.read_seconds,
                decode_seconds=before.decode_seconds + found.decode_seconds,
                num_bytes=before.num_bytes + found.num_bytes,
            )
    return sums
