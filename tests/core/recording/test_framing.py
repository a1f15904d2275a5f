"""Records are found again after any damage, and nothing is read that was not written."""

from __future__ import annotations

import struct
import zlib
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.recording.framing import framed, records_in

SIZES = st.sampled_from([1, 2, 20, 300])
RECORDS = st.lists(SIZES.flatmap(lambda n: st.binary(min_size=n, max_size=n)), max_size=9)


def unmarked(record):
    """As earlier versions have framed it."""
    return struct.pack("<II", len(record), zlib.crc32(record)) + record


def found_in(content, **more):
    """All records."""
    return [found.record for found in records_in(content, **more)]


@given(RECORDS, st.integers(0, 200))
def test_a_file_is_read_up_to_where_it_was_torn(records, end):
    """Every whole record, and nothing of one that is not."""
    content = b"".join(map(framed, records))
    found = list(records_in(content[:end]))
    assert [each.record for each in found] == records[: len(found)]
    ends = list(accumulate(len(framed(each)) for each in records))
    assert [each.end for each in found] == [each for each in ends if each <= end]
    assert sum(each.size_bytes for each in found) == (found[-1].end if found else 0)


DAMAGES = {
    "other bytes": lambda part, noise: (noise * len(part))[: len(part)],
    "one bit": lambda part, _: bytes([part[0] ^ 0x10]) + part[1:] if part else part,
    "zeros": lambda part, _: bytes(len(part)),
    "taken out": lambda *_: b"",
    "put in": lambda part, noise: noise + part,
    "twice": lambda part, _: part + part,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@given(
    records=RECORDS, at=st.integers(0, 400), length=st.integers(0, 60), noise=st.binary(min_size=1)
)
def test_damage_costs_what_it_touches(damage, records, at, length, noise):
    """In a mark, a length, a checksum or a record; all others are found."""
    content = b"".join(map(framed, records))
    end = at + length
    changed = content[:at] + damage(content[at:end], noise) + content[end:]
    edges = [0, *accumulate(len(framed(each)) for each in records)]
    untouched = [
        record
        for record, (begin, its_end) in zip(records, pairwise(edges), strict=True)
        if its_end <= at or begin >= end
    ]
    found = found_in(changed, past_damage=True)
    left = iter(found)
    assert all(record in left for record in untouched)
    assert set(found) <= set(records)


@pytest.mark.parametrize("num_zeros", [1, 8, 9, 4096])
def test_zeros_are_no_records(num_zeros):
    """A power cut leaves them where a file had grown, and nothing was written yet."""
    content = framed(b"one") + bytes(num_zeros)
    assert found_in(content) == [b"one"]
    assert found_in(content + framed(b"two"), past_damage=True) == [b"one", b"two"]


MIXED = {
    "as they were": (lambda c: c, [b"one", b"two", b"three"]),
    "another record": (lambda c: c.replace(b"two", b"twx"), [b"one", b"three"]),
    "a length": (lambda c: c[:11] + b"\xff\xff\xff\xff" + c[15:], [b"one", b"three"]),
    "torn": (lambda c: c[:-1], [b"one", b"two"]),
}


@pytest.mark.parametrize(("damage", "left"), MIXED.values(), ids=MIXED)
def test_files_of_earlier_versions_are_read(damage, left):
    """Also those that this version has gone on with; a damaged record is passed over."""
    content = damage(unmarked(b"one") + unmarked(b"two") + framed(b"three"))
    assert found_in(content, past_damage=True) == left
