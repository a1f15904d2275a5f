"""Where jobs are placed by what a trial has measured of sets of nodes."""

from __future__ import annotations

import pytest

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.measured.measured_trial import MeasuredPlacement, MeasuredTrial
from hetero_hvd.core.queue.measured.model_book import MAX_TRIALS, PATIENCE_SECONDS, ModelBook
from hetero_hvd.core.queue.queue_events import (
    JobFinished,
    JobMeasured,
    JobSubmitted,
    ModelTold,
    ModelTried,
)
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.queue.why_waiting import why

SLOW_LINK = {"a": 600, "b": 300, "c": 60, "ab": 800, "ac": 500, "bc": 250, "abc": 700}
"""c is of no use, whatever nodes.yaml says of it."""

PARTNERS = SLOW_LINK | {"ab": 400, "ac": 640, "abc": 410}
"""The link between the two fastest is slow."""

VALLEY = SLOW_LINK | {"ab": 590, "ac": 580, "abc": 900}
"""Each alone slows a down, both together do not."""

FEWEST_2 = {nodes: speed for nodes, speed in SLOW_LINK.items() if len(nodes) > 1}

# fmt: off
PLACEMENTS = {
    "no trial": (None, "a b c", {}, "a b c"),
    "a node that slows it down": (SLOW_LINK, "a b c", {}, "a b"),
    "it needs all": (SLOW_LINK, "a b c", {"min_devices": 3}, "a b c"),
    "it may have one": (SLOW_LINK, "b a c", {"max_devices": 1}, "a"),
    "the fastest are not the best together": (PARTNERS, "a b c", {"min_devices": 2}, "a c"),
    "it grows to the best": (PARTNERS, "a b c", {}, "a c"),
    "more than one more is needed": (VALLEY, "a b c", {}, "a b c"),
    "it may not have so many": (VALLEY, "a b c", {"max_devices": 2}, "a"),
    "no set of one was tried": (FEWEST_2, "a b c", {"min_devices": 2}, "a b"),
    "the best is taken": (SLOW_LINK, "a*busy b c", {}, "b"),
    "one of it is away": (SLOW_LINK, "a*lost b c", {}, "b"),
    "a node that was not there": (SLOW_LINK, "a b c d", {"max_devices": 4}, "a b d"),
    "more of a node than it had": (SLOW_LINK, "a b c c", {"max_devices": 4}, "a b"),
    "all of a node with several": ({"a": 600, "cc": 300, "acc": 500}, "a c c", {}, "a"),
    "a set that was not tried, of nodes that were":
        ({"a": 600, "b": 600, "c": 60, "ab": 640}, "a b c", {}, "a b c"),
    "likewise, where together they are slow":
        ({"a": 600, "b": 600, "c": 60, "ab": 500}, "a b c", {}, "a c"),
    "a part of a node": ({"a": 600, "cc": 300, "acc": 800}, "a c c", {"max_devices": 2}, "a c"),
}
"""What was tried, devices by their nodes, the job, and the nodes that it gets."""
# fmt: on

ONE = {"job": "job", "user": "ann", "script": "train.py", "max_devices": 3, "work": 1e6}


def trial_of(speeds, *, run="r", batch=64, at=0.0):
    """As it was made; of one character each a node."""
    workers = {}
    for nodes in speeds:
        workers |= {name: max(nodes.count(name), workers.get(name, 0)) for name in nodes}
    return MeasuredTrial(
        run=run,
        global_batch_size=batch,
        at_seconds=at,
        workers=workers,
        placements=tuple(
            MeasuredPlacement(
                nodes=tuple(sorted(set(nodes))), samples_per_second=speed, is_measured=True
            )
            for nodes, speed in speeds.items()
        ),
    )


def cluster(words):
    """A device for each word, all of one speed as far as nodes.yaml says."""
    found = []
    for number, word in enumerate(words.split()):
        node, _, what = word.partition("*")
        condition = "lost" if what == "lost" else "ready"
        name = f"{node}:{number}"
        found.append(QueueDevice(device=name, kind=f"x{node}", node=node, condition=condition))
    return found


def queue_of(words, speeds=None, **fields):
    """A queue that knows a trial, and has a job of its script."""
    state = QueueState(cluster(words))
    if "*busy" in words:
        other = JobRequest(
            job="other", user="bob", is_shrinkable=False, time_limit_seconds=9e9, work=1.0
        )
        state.handle(JobSubmitted(other), 0)
        decide(state, 0)
    if speeds is not None:
        state.handle(ModelTried("ann", "train.py", "Net 1", trial_of(speeds)), 0)
    state.handle(JobSubmitted(JobRequest(**ONE | fields)), 0)
    decide(state, 0)
    return state


def nodes_of(state, job="job"):
    """Nodes of a job's devices."""
    return sorted(state.devices[name].node for name in state.jobs[job].devices)


@pytest.mark.parametrize("case", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_where_a_job_is_placed(case):
    """By what sets of nodes did together; and there it stays."""
    speeds, words, fields, expected = case
    state = queue_of(words, speeds, **fields)
    assert nodes_of(state) == expected.split()
    assert decide(state, 60) == []


def test_why_says_by_what():
    """In the reason of the decision, too."""
    state = queue_of("a b c")
    assert "trial" not in why(state, "job", 0)
    state = QueueState(cluster("a b c"))
    state.handle(ModelTried("ann", "train.py", "Net 1", trial_of(SLOW_LINK)), 0)
    state.handle(JobSubmitted(JobRequest(**ONE)), 0)
    (decision,) = decide(state, 0)
    assert decision.reason.endswith("; 800 samples/s measured by the trial of r")
    assert why(state, "job", 0) == (
        "job runs on 2 devices: a:0, b:1; about 21 min left; 800 samples/s measured by the trial "
        "of r; left out, as it is no faster with them: c (700 with it)"
    )
    state.handle(
        JobSubmitted(JobRequest(**ONE | {"job": "next", "min_devices": 4, "max_devices": 4})), 0
    )
    decide(state, 0)
    assert why(state, "next", 0) == (
        "next waits: default has 3 devices, and it needs 4; fastest by the trial of r: a, b, 800 "
        "samples/s"
    )


TOLD = {
    "the same": (("Net 1", 64), ["a", "b"], ""),
    "no batch is told": (("Net 1", 0), ["a", "b"], ""),
    "another batch": (("Net 1", 65), ["a", "b", "c"], "the trial of r had batches of 64 samples"),
    "another model": (("Net 2", 64), ["a", "b", "c"], "the trial of r was of another model"),
}


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD.keys())
def test_what_a_job_tells_of_itself_decides_whether_its_trial_counts(case):
    """Until then it is taken to train what its script was tried with."""
    (model, batch), nodes, words = case
    state = queue_of("a b c", SLOW_LINK)
    assert nodes_of(state) == ["a", "b"]
    state.handle(ModelTold("job", model, batch), 100)
    decide(state, 100)
    assert nodes_of(state) == nodes
    told = why(state, "job", 100)
    assert ("no trial counts: " in told) == bool(words)
    assert words in told


def test_own_speeds_do_not_move_a_job_that_its_trial_has_placed():
    """Workers that share a batch are slower than one that has it alone, or another way round."""
    state = queue_of("a b c", SLOW_LINK)
    for factor in (0.5, 0.9, 2.0):
        rates = {"xa": 600 * factor, "xb": 300 * factor}
        state.handle(JobMeasured("job", 1e6, rates), 100)
        assert decide(state, 100) == []


BOOK = {
    "nothing": ([], None),
    "one": ([("train.py", "Net 1", 64, 0.0, "r")], "r"),
    "another script": ([("b.py", "Net 1", 64, 0.0, "r")], None),
    "the newer one": ([("train.py", "Net 1", 64, 0, "r"), ("train.py", "Net 1", 64, 1, "s")], "s"),
    "an older one": ([("train.py", "Net 1", 64, 1, "r"), ("train.py", "Net 1", 64, 0, "s")], "r"),
    "the newer model": ([("train.py", "Net 1", 64, 1, "r"), ("train.py", "N", 64, 2, "s")], "s"),
    "an older model": ([("train.py", "Net 1", 64, 2, "r"), ("train.py", "N", 64, 1, "s")], "r"),
    "too old": ([("train.py", "Net 1", 64, -PATIENCE_SECONDS, "r")], None),
}


@pytest.mark.parametrize("case", BOOK.values(), ids=BOOK.keys())
def test_which_trial_counts(case):
    """The newest of what the script is taken to train; and nobody else's."""
    tried, run = case
    book = ModelBook()
    for script, model, batch, at, name in tried:
        book.note_trial("ann", script, model, trial_of(SLOW_LINK, run=name, batch=batch, at=at))
    for each in (book, ModelBook(book.facts)):
        found = each.expected(JobRequest(**ONE), 3.0).trial
        assert (found.run if found else None) == run
        assert each.expected(JobRequest(**ONE | {"user": "bob"}), 3.0).trial is None


def test_no_more_trials_are_kept_than_there_is_room_for():
    """Of a model; the newest."""
    book = ModelBook()
    for batch in range(1, MAX_TRIALS + 3):
        book.note_trial("ann", "train.py", "N", trial_of(SLOW_LINK, batch=batch, at=batch))
    (known,) = book.facts
    assert [each.global_batch_size for each in known.trials] == [3, 4, 5, 6, 7]
    request = book.expected(JobRequest(**ONE), 9.0)
    assert book.tried(request, "N", 9.0, 5).trial.global_batch_size == 5


def test_a_trial_says_nothing_of_jobs_that_have_none():
    """Theirs are placed as ever, beside those that have."""
    state = queue_of("a b c", SLOW_LINK)
    state.handle(JobSubmitted(JobRequest(job="bobs", user="bob", work=1e6)), 0)
    decide(state, 0)
    assert nodes_of(state, "bobs") == ["c"]
    state.handle(JobFinished("job"), 10)
    decide(state, 10)
    assert nodes_of(state, "bobs") == ["c"]
