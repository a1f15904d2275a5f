"""What cannot work is told from what works with a difference, and who differs from most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.versions import COLUMNS, compare, table
from hetero_hvd.messages import WorkerId

A, B, C = (WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))
USUAL = {
    "hetero_hvd": "0.1.0",
    "horovod": "0.28.1+hetero.ab",
    "torch": "2.4.0",
    "python": "3.11.8",
    "reduction": "host memory",
}
ON_GPUS = {**USUAL, "cuda": "12.4", "nccl": "2.20.5", "reduction": "NCCL"}


@pytest.mark.parametrize(
    ("usual", "other", "is_fatal"),
    [
        (USUAL, {"hetero_hvd": "0.2.0"}, True),
        (USUAL, {"horovod": "0.27.0"}, True),
        (USUAL, {"horovod": "0.28.1"}, False),
        (USUAL, {"torch": "2.3.1"}, False),
        (USUAL, {"python": "3.11.2"}, False),
        (USUAL, {"nccl": "2.18.3"}, False),
        (ON_GPUS, {"nccl": "2.18.3"}, True),
        (ON_GPUS, {"reduction": "host memory"}, True),
        (ON_GPUS, {"cuda": "11.8"}, False),
    ],
    ids=str,
)
def test_each_mismatch_is_judged(usual, other, is_fatal):
    """The odd one of three is named, with what it has and what the others have."""
    (found,) = compare({A: usual, B: {**usual, **other}, C: usual})
    ((what, version),) = other.items()
    assert (found.what, found.workers, found.found) == (what, (B,), version)
    assert found.expected == usual.get(what, "")
    assert found.is_fatal is is_fatal
    assert str(found).startswith("cannot work: beta:0: " if is_fatal else "note: beta:0: ")


def test_what_is_fatal_comes_first():
    """Whatever the order of the columns is."""
    other = {**USUAL, "python": "3.11.2", "torch": "2.3.1", "reduction": "NCCL"}
    found = compare({A: USUAL, B: other})
    assert [mismatch.is_fatal for mismatch in found] == [True, False, False]


def test_a_newcomer_is_judged_by_the_members():
    """Even if it comes with the version that will be more frequent one day."""
    members = {A: USUAL}
    newer = {**USUAL, "horovod": "0.29.0"}
    found = compare({B: newer, C: newer}, members)
    assert [(mismatch.workers, mismatch.expected) for mismatch in found] == [
        ((B, C), USUAL["horovod"])
    ]


@given(st.dictionaries(st.sampled_from([A, B, C]), st.just(USUAL), min_size=1))
def test_equal_workers_have_no_mismatch(facts):
    """However many they are."""
    assert compare(facts) == ()
    assert compare(facts, {}) == ()


def test_the_table_has_a_line_for_each_worker():
    """Columns that nobody has are left out; what one worker lacks is a dash."""
    lines = table({A: USUAL, B: {**USUAL, "cuda": "12.4"}})
    assert [line.split()[0] for line in lines] == ["worker", "alpha:0", "beta:0"]
    assert lines[0].split() == ["worker", *(what for what in COLUMNS if what != "nccl")]
    assert lines[1].split()[-3:] == ["-", "host", "memory"]
    assert len({line.index("2.4.0") for line in lines[1:]}) == 1
