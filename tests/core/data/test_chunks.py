"""The queues of wait-free rounds."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.data.chunks import ChunkQueues, ChunksDone


class Team:
    """Workers that take chunks in rounds, each with its own count; one view of the queues."""

    def __init__(self, queues, num_workers, num_ahead):
        self.queues = queues
        self.num_ahead = num_ahead
        self.used = [0] * num_workers
        self.flights = deque()
        self.done = []

    def round(self, wanted):
        """Each takes what it wants of what it may; the oldest round lands when it must."""
        place = len(self.flights)
        counts = [min(w, self.queues.limit(rank, place)) for rank, w in enumerate(wanted)]
        taken = []
        for rank, count in enumerate(counts):
            ahead = sum(flight[0][rank] for flight in self.flights)
            taken += list(self.queues.queues[rank])[ahead : ahead + count]
        assert len(taken) == sum(counts)
        self.flights.append((counts, taken))
        if len(self.flights) > self.num_ahead:
            self.land()

    def lose(self, rank):
        """A worker is gone with all that it has taken; the others keep theirs."""
        self.queues.lose([rank])
        for counts, taken in self.flights:
            start = sum(counts[:rank])
            del taken[start : start + counts[rank]]
            del counts[rank]

    def land(self):
        """The oldest round is reduced."""
        counts, taken = self.flights.popleft()
        self.queues.landed(counts)
        self.done += taken


def queues_of(num_chunks, num_workers, num_ahead, prefetch, progress=None):
    """In rounds of eight chunks."""
    return ChunkQueues(
        num_chunks=num_chunks,
        num_workers=num_workers,
        chunks_per_round=8,
        num_ahead=num_ahead,
        prefetch=prefetch,
        progress=progress,
    )


@given(
    st.integers(0, 60), st.integers(1, 5), st.integers(0, 3), st.integers(0, 4), st.integers(0, 999)
)
def test_each_chunk_is_done_exactly_once(num_chunks, num_workers, num_ahead, prefetch, seed):
    """Whatever each gets done, over a fault at any moment: no chunk is lost or repeated."""
    chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
    done, progress = [], None
    for is_last in (False, True):
        queues = queues_of(num_chunks, num_workers, num_ahead, prefetch, progress)
        team = Team(queues, num_workers, num_ahead)
        num_rounds = 0
        while not queues.is_done and (is_last or chance.random() < 0.8):
            wanted = [chance.randrange(1, 6) for _ in range(num_workers)]
            team.round(wanted)
            num_rounds += 1
            assert num_rounds <= 10 * (num_chunks + num_ahead + 1)
        done += team.done
        progress = queues.progress
        num_workers = chance.randrange(1, 6)
    assert sorted(done) == list(range(num_chunks))
    assert progress == ChunksDone(frontier=num_chunks)


@given(
    st.integers(30, 90),
    st.integers(2, 5),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 999),
)
def test_who_is_lost_takes_nothing_with_it(num_chunks, num_workers, num_ahead, prefetch, seed):
    """Whoever is lost, at whatever moment, one after the other: each chunk is in one part."""
    chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
    queues = queues_of(num_chunks, num_workers, num_ahead, prefetch)
    team = Team(queues, num_workers, num_ahead)
    num_rounds, lost, first = 0, [], chance.randrange(2)  # chunks are left after that
    while not queues.is_done:
        if num_workers > 1 and (chance.random() < 0.3 or num_rounds == first):
            rank = chance.randrange(num_workers)
            lost += queues.queues[rank]
            num_workers -= 1
            team.lose(rank)
        team.round([chance.randrange(1, 6) for _ in range(num_workers)])
        num_rounds += 1
        assert num_rounds <= 10 * (num_chunks + num_ahead + 1)
    assert sorted(team.done) == list(range(num_chunks))
    assert queues.progress == ChunksDone(frontier=num_chunks)
    assert lost


def test_queues_are_told_apart():
    """The digest is that of the state: the same after the same rounds, another one after others."""

    def queues(*counts, lost=()):
        found = ChunkQueues(num_chunks=90, num_workers=3, chunks_per_round=8, num_ahead=1)
        for each in counts:
            found.landed(each)
        found.lose(lost)
        return found

    rounds = [(), ((1, 2, 3),), ((3, 2, 1),), ((1, 2, 3), (3, 2, 1))]
    ways = [(counts, lost) for counts in rounds for lost in ((), (0,), (2,))]
    digests = [queues(*counts, lost=lost).digest for counts, lost in ways]
    assert len(set(digests)) == len(ways)
    assert digests == [queues(*counts, lost=lost).digest for counts, lost in ways]


def test_the_end_of_an_epoch_is_divided():
    """A slow worker gives back what it holds, so that nobody works alone at the end."""
    queues = ChunkQueues(num_chunks=200, num_workers=2, chunks_per_round=10, num_ahead=1)
    team = Team(queues, 2, 1)
    sizes = []
    while not queues.is_done:
        fast = max(1, queues.target(0))
        team.round([max(9, fast), 1])
        sizes.append(sum(team.flights[-1][0]) if team.flights else 0)
    assert len(team.done) == 200
    assert len(sizes) <= 200 / 10 + 6


def test_a_round_is_as_large_as_it_should_be():
    """The targets are the workers' parts of the last rounds, and add up to about a round."""
    queues = ChunkQueues(num_chunks=1000, num_workers=4, chunks_per_round=16, num_ahead=1)
    team = Team(queues, 4, 1)
    assert [queues.target(rank) for rank in range(4)] == [1, 1, 1, 1]
    for _ in range(6):
        team.round([5, 5, 5, 1])
    assert [queues.target(rank) for rank in range(4)] == [5, 5, 5, 1]


def test_nobody_takes_more_than_it_may():
    """A count above the limit would take chunks of another round: it is refused."""
    queues = ChunkQueues(num_chunks=9, num_workers=2, chunks_per_round=4, num_ahead=0)
    with pytest.raises(ValueError, match="must be at most"):
        queues.landed([queues.limit(0, 0) + 1, 0])
