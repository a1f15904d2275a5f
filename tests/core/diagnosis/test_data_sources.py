"""Where the wait for data limits a run, the source is named that is waited for most."""

import pytest

from hetero_hvd.core.diagnosis.data_sources import NUM_MESSAGES, SourceWaits
from hetero_hvd.messages import Finding, SourceRead, SourcesRead, WorkerId

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)


def told(worker, step=0, **waits):
    """What a worker tells: source to seconds that it was waited for, half of them for decoding."""
    sources = {
        name: SourceRead(wait_seconds=s, read_seconds=s / 2, decode_seconds=s / 2)
        for name, s in waits.items()
    }
    return SourcesRead(worker=worker, step=step, sources=sources)


def finding(kind, **more):
    """A judgement."""
    return Finding(kind=kind, is_complete=True, words="words", **more)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (finding("input"), "near"),
        (finding("straggler", worker=BETA, cause="input"), "far"),
        (finding("straggler", worker=BETA, cause="input", is_past=True), None),
        (finding("straggler", worker=BETA, cause="compute"), None),
        (finding("straggler", worker=WorkerId("gamma", 0), cause="input"), None),
        (finding("compute"), None),
    ],
)
def test_the_source_is_named_where_it_is_the_cause(found, name):
    """That of all workers where the run is bound by it, a straggler's own where it is slow."""
    waits = SourceWaits()
    waits.observe(told(ALPHA, near=8.0, far=1.0))
    waits.observe(told(BETA, near=1.0, far=2.0))
    words = waits.named(found).words
    if name is None:
        assert words == "words"
        return
    ratio = {"near": "75%", "far": "67%"}[name]
    assert words == (
        f"words; {ratio} of that wait is for {name}, of which decoding its samples takes 50% and "
        "reading the rest"
    )
    assert waits.named(found).evidence["source_decoding_ratio"] == 0.5


def test_what_was_long_ago_does_not_count():
    """A source that was slow and is well is not named; nothing is, where nobody waits."""
    waits = SourceWaits()
    waits.observe(told(ALPHA, old=100.0))
    for step in range(NUM_MESSAGES):
        waits.observe(told(ALPHA, step, new=0.0))
    assert waits.named(finding("input")).words == "words"
    waits.observe(told(ALPHA, 9, new=0.1))
    assert "is for new" in waits.named(finding("input")).words
