"""Bytes of any length between the workers, also more than fit into one allgather."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from hetero_hvd.worker.comm import payloads
from hetero_hvd.worker.comm.payloads import gather_bytes


class Gathering:
    """Threads in place of ranks: joins the rows of all, and notes how many there were each time."""

    def __init__(self, size):
        self.size = size
        self.rows = {}
        self.met = Barrier(size)
        self.largest = 0

    def rank(self, number):
        """The collective of one of them."""
        return Rank(self, number)


class Rank:
    """See `Gathering`."""

    def __init__(self, group, number):
        self.size = group.size
        self.group = group
        self.number = number

    def gather_rows_async(self, rows, name):
        """Give it; `wait` has the result."""
        self.group.rows[name, self.number] = rows
        return name

    def wait(self, name):
        """All rows, in rank order."""
        self.group.met.wait(10)
        joined = torch.cat([self.group.rows[name, number] for number in range(self.size)])
        self.group.largest = max(self.group.largest, len(joined))
        return joined


PAYLOADS = {
    "none": [b"", b""],
    "one rank": [b"alone" * 9],
    "as much as fits": [b"a" * 8, b"b" * 8, b"c" * 8],
    "one more": [b"a" * 9, b"b" * 8, b"c" * 8],
    "only the last has much": [b"", b"b", bytes(range(256)) * 2],
    "a whole number of pieces": [b"a" * 24, b"", b"c" * 16],
}


@pytest.mark.parametrize("case", PAYLOADS)
def test_what_does_not_fit_into_one_gather_goes_in_pieces(monkeypatch, case):
    """Each piece has its length in front; no gather is longer than what Gloo can count."""
    given = PAYLOADS[case]
    limit = 8 * len(given)
    monkeypatch.setattr(payloads, "GATHER_BYTES", limit)
    group = Gathering(len(given))

    def gather(number):
        return gather_bytes(group.rank(number), given[number], "x")

    with ThreadPoolExecutor(len(given)) as pool:
        found = list(pool.map(gather, range(len(given))))
    assert found == [given] * len(given)
    assert group.largest <= limit + 2 * payloads.LENGTH_BYTES * len(given)
