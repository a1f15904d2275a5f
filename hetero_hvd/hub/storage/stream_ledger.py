"""How far each stream is stored: changes are worked out first, and hold once they are on the disk.

One thread at a time works out and publishes; whoever reads waits for nobody, and sees what is
stored only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sequences import FIRST, NumberRange, accept
from hetero_hvd.core.recording.timeline import aligned
from hetero_hvd.discovery.hub_link import SampleBatch
from hetero_hvd.hub.storage.index import StreamState
from hetero_hvd.hub.storage.journal import JournalEntry, hole_before

NO_STREAM = StreamState("", FIRST, 0, 0, 0)


class NodeBatch(NamedTuple):
    """A batch, and who has sent it.

    Attributes:
        node: Its node.
        batch: What it has sent.
    """

    node: str
    batch: SampleBatch


class NodeFrame(NamedTuple):
    """A sample as it is stored.

    Attributes:
        node: Whose.
        stream: Of which life of its agent.
        recorded: The sample.
    """

    node: str
    stream: str
    recorded: Recorded


class StreamLedger:
    """What is known of all streams.

    Args:
        streams: How far each is stored.

    Attributes:
        streams: The same, as it is now.
        latest: The newest sample of each node.
        num_duplicates: Samples that were sent again.
        num_ahead: Samples from the future, that bear the time of their arrival.
    """

    def __init__(self, streams: dict[str, StreamState]) -> None:
        self.streams = streams
        self.latest: dict[str, NodeFrame] = {}
        self.num_duplicates = 0
        self.num_ahead = 0

    def next_sequence(self, stream: str) -> int:
        """Number of the first sample of a stream that is not stored."""
        return self.streams.get(stream, NO_STREAM).next_sequence

    def newest_streams(self) -> set[str]:
        """Of each node that with its newest sample: its agent may send more of it."""
        newest: dict[str, tuple[int, str]] = {}
        for name, state in self.streams.items():
            found = (state.newest, name)
            newest[state.node] = max(found, newest.get(state.node, found))
        return {name for _, name in newest.values()}

    def publish(self, changes: LedgerChanges) -> None:
        """What was worked out is stored."""
        self.streams.update(changes.streams)
        self.latest.update(changes.latest)
        self.num_duplicates += changes.num_duplicates
        self.num_ahead += changes.num_ahead


class LedgerChanges:
    """What changes by some batches, or by what a journal holds.

    Args:
        ledger: Before them.

    Attributes:
        entries: What is to be stored.
        streams: Those that change.
        latest: The newest sample of each node that has a newer one.
        num_duplicates: As of the ledger.
        num_ahead: As of the ledger.
    """

    def __init__(self, ledger: StreamLedger) -> None:
        self._ledger = ledger
        self.entries: list[JournalEntry] = []
        self.streams: dict[str, StreamState] = {}
        self.latest: dict[str, NodeFrame] = {}
        self.num_duplicates = 0
        self.num_ahead = 0

    def state(self, stream: str) -> StreamState:
        """How far a stream is stored with them."""
        return self.streams.get(stream) or self._ledger.streams.get(stream, NO_STREAM)

    def take(self, node: str, batch: SampleBatch, now_microseconds: int) -> None:
        """Work out what is new in a batch.

        Args:
            node: Who has sent it.
            batch: What it has sent.
            now_microseconds: By the hub's clock.
        """
        state = self.state(batch.stream)
        accepted = accept(state.next_sequence, batch.first, len(batch.samples))
        skip = accepted.num_duplicates
        self.num_duplicates += skip
        if skip < len(batch.samples):
            times = aligned(
                batch.times_seconds[skip:],
                batch.offset_seconds,
                after_microseconds=state.newest,
                now_microseconds=now_microseconds,
            )
            self.num_ahead += times.num_ahead
            missing = [] if accepted.missing is None else [accepted.missing]
            samples = batch.samples[skip:]
            first = batch.first + skip
            self._add(batch.stream, node, first, missing, (times.microseconds, samples))
        for each in batch.dropped:
            known = self.state(each.stream).next_sequence
            if each.last >= known:  # it is told when nothing before it waits any more
                self._add(each.stream, node, known, [NumberRange(known, each.last)])

    def _add(
        self,
        stream: str,
        node: str,
        first: int,
        missing: Sequence[NumberRange],
        samples: tuple[list[int], list[bytes]] = ([], []),
    ) -> None:
        entry = JournalEntry(stream, node, first, *samples, list(missing))
        self.entries.append(entry)
        self.note(entry)

    def replay(self, entry: JournalEntry) -> None:
        """Take in what a journal holds, and what damage has taken out of it."""
        hole = hole_before(entry, self.state(entry.stream).next_sequence)
        if hole is not None:
            self.note(hole)
        self.note(entry)

    def note(self, entry: JournalEntry) -> None:
        """Count what is in an entry."""
        state = self.state(entry.stream)
        self.streams[entry.stream] = StreamState(
            entry.node,
            max(state.next_sequence, entry.next_sequence),
            entry.times[-1] if entry.times else state.newest,
            state.num_samples + len(entry.samples),
            state.num_missing + sum(each.size for each in entry.ranges),
        )
        if entry.samples:
            last = Recorded(
                entry.first + len(entry.samples) - 1, entry.times[-1], entry.samples[-1]
            )
            known = self.latest.get(entry.node) or self._ledger.latest.get(entry.node)
            if known is None or known.recorded.at_microseconds <= last.at_microseconds:
                self.latest[entry.node] = NodeFrame(entry.node, entry.stream, last)
