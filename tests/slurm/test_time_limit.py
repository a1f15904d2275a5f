"""A job is over before Slurm ends it."""

import math
import threading
import time
from types import SimpleNamespace

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.slurm import time_limit
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.time_limit import TimeLimit, part_of, seconds_of
from tests.leftovers import wait_until
from tests.slurm.conftest import SQUEUE


def job(number="32"):
    """A job of this number."""
    return Allocation(number=int(number), label=number, nodes=())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:07", 7),
        ("59:59", 3599),
        ("1:00:00", 3600),
        ("2-03:04:05", 183845),
        ("UNLIMITED", math.inf),
        ("NOT_SET", math.inf),
        ("INVALID", 0),
        ("", math.inf),
    ],
)
def test_what_squeue_says_is_read(text, seconds):
    """Days, hours, minutes and seconds, or that there is no limit."""
    assert seconds_of(text) == seconds


def say(programs, answer, number="32"):
    """Let squeue say how much time is left, for each part of the job."""
    lines = [f"{n}|{number}+{n}|RUNNING|{left}|fast1\n" for n, left in enumerate(answer.split())]
    (programs / "squeue.jobs").write_text("".join(lines))


def limit(programs, answer, number="32", **margins):
    """The limit of a job of which squeue says this."""
    say(programs, answer, number)
    return TimeLimit(job(number), **{"leave_seconds": 60, "stagger_seconds": 0} | margins)


@pytest.mark.parametrize(
    ("answer", "margins", "is_over"),
    [
        ("10:00\n", {}, False),
        ("0:30\n", {"leave_seconds": 0}, False),
        ("UNLIMITED\n", {}, False),
        ("10:00\n9:00\n", {"leave_seconds": 539}, False),
        ("10:00\n", {"leave_seconds": 300, "stagger_seconds": 240}, False),
        ("", {}, False),
    ],
)
def test_before_that_it_goes_on(programs, answer, margins, is_over):
    """The first end of the parts of a heterogeneous job counts."""
    assert bool(limit(programs, answer, **margins).why_over()) is is_over


def test_when_it_is_time_it_says_so(programs, monkeypatch):
    """The limit is asked for again and again: it may be changed."""
    monkeypatch.setattr(time_limit, "LOOK_SECONDS", 0.01)
    found = limit(programs, "10:00\n")
    found.follow()
    assert not found.why_over()
    say(programs, "0:59\n")
    wait_until(found.why_over, 20, "the new limit")
    assert found.why_over() == "Slurm's time limit is reached in 59 s"


def test_a_job_that_was_suspended_goes_on(programs, monkeypatch):
    """Our clock went on, Slurm's for this job did not: it is asked once more before the end."""
    passed = {"seconds": 0.0}
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed["seconds"])
    monkeypatch.setattr(time_limit, "time", clock)
    found = limit(programs, "10:00\n")
    found.follow()
    assert not found.why_over()
    say(programs, "9:50\n")
    passed["seconds"] = 700.0
    asked = programs / "squeue.asked"
    (programs / "squeue").write_text(f'{SQUEUE}touch "$0.asked"\n')
    assert not found.why_over()
    wait_until(asked.exists, 20, "the question")
    for _ in range(20):
        assert not found.why_over()
        threading.Event().wait(0.02)
    say(programs, "0:59\n")
    passed["seconds"] += 600.0
    wait_until(found.why_over, 20, "the true end")


def test_slurm_is_asked_before_it_is_time(programs, monkeypatch):
    """So that the job is not late by as long as an answer takes."""
    passed = {"seconds": 0.0}
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed["seconds"])
    monkeypatch.setattr(time_limit, "time", clock)
    found = limit(programs, "10:00\n")
    found.follow()
    say(programs, "1:05\n")
    asked = programs / "squeue.asked"
    (programs / "squeue").write_text(f'{SQUEUE}echo >> "$0.asked"\n')
    passed["seconds"] = 535.0
    assert not found.why_over()
    wait_until(asked.exists, 20, "the question")
    passed["seconds"] = 541.0
    wait_until(found.why_over, 20, "the end")
    assert asked.read_text() == "\n"


def test_where_slurm_is_away_its_earlier_answer_holds(programs, monkeypatch):
    """A job that did not end for want of an answer would be killed."""
    passed = {"seconds": 0.0}
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed["seconds"])
    monkeypatch.setattr(time_limit, "time", clock)
    monkeypatch.setattr(time_limit, "FOLLOW_SECONDS", 0.1)
    found = limit(programs, "10:00\n")
    found.follow()
    (programs / "squeue").write_text("#!/bin/sh\nexec sleep 9\n")
    passed["seconds"] = 545.0
    wait_until(found.why_over, 20, "the end")


@pytest.mark.parametrize(
    ("answer", "margins"),
    [
        ("0:59\n", {}),
        ("INVALID\n", {"leave_seconds": 0}),
        ("10:00\n9:00\n", {"leave_seconds": 541}),
        ("10:00\n", {"leave_seconds": 595, "stagger_seconds": 16, "number": "40"}),
    ],
)
def test_a_job_without_time_to_train_is_refused(programs, answer, margins):
    """In one line, with what to do."""
    with pytest.raises(UserError, match="ask sbatch for more --time") as error:
        limit(programs, answer, **margins)
    assert "\n" not in str(error.value)


def test_jobs_in_a_row_have_parts_of_their_own():
    """Whose time begins together, that of all of them does not end together."""
    parts = [part_of(job(str(number))) for number in range(100, 116)]
    assert len(set(parts)) == 16
    assert all(0 <= part < 1 for part in parts)
