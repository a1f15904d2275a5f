"""What is known of a model when its next job is submitted, and when that has told it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.fair_share import FairShare
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.measured.model_book import (
    MAX_MODELS,
    MAX_SCRIPTS,
    PATIENCE_SECONDS,
    ModelBook,
)
from hetero_hvd.core.queue.queue_events import JobFinished, JobMeasured, JobSubmitted, ModelTold
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueFacts, QueueState

COMMAND = {"is_shrinkable": False, "time_limit_seconds": 60.0}
FIRST = ("ann", "train.py", "Net 1", {"a100": 1.0, "t4": 3.0})

# fmt: off
CASES = {
    "the same script": ([FIRST], {}, "", {"a100": 1.0, "t4": 3.0}),
    "a script that nobody has run": ([FIRST], {"script": "b.py"}, "", {}),
    "another script of the model": ([FIRST], {"script": "b.py"}, "Net 1", {"a100": 1.0, "t4": 3.0}),
    "the script, with another model": ([FIRST], {}, "Net 2", {}),
    "the script, with another model that is known":
        ([("ann", "b.py", "Net 2", {"v100": 7.0}), FIRST], {}, "Net 2", {"v100": 7.0}),
    "the model that it trained last":
        ([FIRST, ("ann", "train.py", "Net 2", {"v100": 7.0})], {}, "", {"v100": 7.0}),
    "another user's script": ([FIRST], {"user": "bob"}, "", {}),
    "another user's model": ([FIRST], {"user": "bob"}, "Net 1", {}),
    "another user's figures": ([FIRST, ("bob", *FIRST[1:3], {"t4": 9e9})], {}, "", FIRST[3]),
    "a program": ([FIRST], COMMAND, "", {}),
    "a job without a script": ([("ann", "", "Net 1", {"t4": 3.0})], {"script": ""}, "", {}),
    "a driver that tells no model": ([("ann", "train.py", "", {"t4": 3.0})], {}, "", {}),
    "what is newer counts":
        ([FIRST, ("ann", "b.py", "Net 1", {"t4": 5.0})], {}, "", {"a100": 1.0, "t4": 5.0}),
}
"""Jobs before (user, script, model, rates); what differs from a job of ann's train.py, and what it
tells; what it knows of its model then."""
# fmt: on


def request(**fields):
    """Of a job of ann's train.py."""
    return JobRequest(**{"job": "new", "user": "ann", "script": "train.py", **fields})


def measured(book, job, now=0.0, **more):
    """Have a job measure so much."""
    user, script, model, rates = job
    before = book.told(request(user=user, script=script), model, now)
    book.note(before, replace(before, rates=rates, **more), now)


def known_after(book, told="", now=1.0, **fields):
    """The rates that a job starts with, or has when it has told its model."""
    found = book.expected(request(**fields), now)
    return dict((book.told(found, told, now) if told else found).expected_rates)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_a_job_knows(case):
    """Also after a restart of the hub."""
    jobs, fields, told, expected = case
    book = ModelBook()
    for job in jobs:
        measured(book, job)
    facts = QueueFacts(0.0, 1, FairShare(1.0).facts, models=book.facts)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=QueueFacts)
    for each in (book, ModelBook(kept.models)):
        assert known_after(each, told, **fields) == expected


def test_figures_lapse():
    """Each by itself; a model that nobody trains is forgotten."""
    book = ModelBook()
    measured(book, FIRST, bytes_per_unit=1e6, hidden_ratio=0.5)
    measured(book, (*FIRST[:3], {"t4": 4.0}), now=10.0)
    later = PATIENCE_SECONDS + 5.0
    assert known_after(book, now=later) == {"t4": 4.0}
    assert book.expected(request(), 5.0).bytes_per_unit == 1e6
    assert book.expected(request(), 5.0).hidden_ratio == 0.5
    assert book.expected(request(), later).bytes_per_unit == 0.0
    assert book.expected(request(), later).hidden_ratio == 0.0
    measured(book, ("bob", "b.py", "Net 2", {"t4": 4.0}), now=later + 10.0)
    assert [each.user for each in book.facts] == ["bob"]


def test_no_more_is_kept_than_is_trained():
    """The models of a user, and the scripts of a model, that came last; others' are left alone."""
    book = ModelBook()
    measured(book, FIRST)
    for number in range(2 * MAX_MODELS):
        measured(book, ("bob", f"{number}.py", f"Net {number}", {"t4": 1.0}))
    for number in range(2 * MAX_SCRIPTS):
        measured(book, ("bob", f"more{number}.py", "Net 39", {"t4": 1.0}))
    assert known_after(book) == FIRST[3]
    models = [each.model for each in book.facts if each.user == "bob"]
    assert models == [f"Net {number}" for number in range(MAX_MODELS, 2 * MAX_MODELS)]
    assert len(book.facts[-1].scripts) == MAX_SCRIPTS


def test_a_job_that_inherits_keeps_nothing_older_than_what_others_measure():
    """Only what a job has measured itself is noted."""
    book = ModelBook()
    measured(book, FIRST)
    before = book.expected(request(), 1.0)
    measured(book, (*FIRST[:3], {"a100": 2.0}), now=2.0)
    book.note(before, replace(before, rates={"t4": 9.0}), 3.0)
    assert known_after(book, now=4.0) == {"a100": 2.0, "t4": 9.0}


EXPECTED = {
    "nothing": ({}, {}, {}),
    "of earlier jobs": ({}, {"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 3.0}),
    "of this one": ({"a": 1.0}, {}, {"a": 1.0}),
    "of this one, whose samples are larger": (
        {"a": 0.5},
        {"a": 1.0, "b": 3.0},
        {"a": 0.5, "b": 1.5},
    ),
    "of another kind": ({"c": 8.0}, {"a": 1.0}, {"a": 1.0, "c": 8.0}),
}


@pytest.mark.parametrize(("own", "of_model", "expected"), EXPECTED.values(), ids=EXPECTED.keys())
def test_ratios_of_earlier_jobs_count(own, of_model, expected):
    """And not their unit: samples may be of another size."""
    assert request(rates=own, model_rates=of_model).expected_rates == expected


def test_the_next_job_begins_where_the_last_one_was_fast():
    """Whatever nodes.yaml says; a kind that was never measured is placed by what it says."""
    kinds = {"a100": 1.0, "t4": 0.5, "v100": 0.6}
    devices = [
        QueueDevice(device=kind, kind=kind, node=kind, relative_speed=speed)
        for kind, speed in kinds.items()
    ]
    state = QueueState(devices)
    placed = []
    for number, told in enumerate(("Net 1", "Net 1", "Net 2", "Net 1")):
        name = str(number)
        state.handle(JobSubmitted(request(job=name)), number)
        decide(state, number)
        placed += state.jobs[name].devices
        state.handle(ModelTold(name, told), number)
        if told == "Net 1":
            state.handle(JobMeasured(name, 100.0, {"a100": 1.0, "t4": 3.0}, 1e6, 0.5), number)
        known = state.jobs[name].request
        assert (known.model, known.bytes_per_unit) == (told, 1e6 if told == "Net 1" else 0.0)
        state.handle(JobFinished(name), number)
    assert placed == ["a100", "t4", "t4", "a100"]
