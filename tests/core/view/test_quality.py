"""How good a training is as it stands, from replayed events."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.quality import Quality, QualityView, duration, quality_in_words
from hetero_hvd.messages import (
    CheckpointWritten,
    Evaluated,
    Logged,
    LoggedValue,
    RunEnded,
    StepsTimed,
    WorkerId,
    WorkersJoined,
)
from tests.run.records.test_records import timing

JOINED = WorkersJoined(
    rendezvous_id=1,
    workers=(WorkerId("a", 0),),
    applied_steps=0,
    global_batch_size=8,
    capacities=(-1,),
    prefetch_steps=0,
)


def timed(step):
    """An exchange without rows of anybody's."""
    return StepsTimed(
        rendezvous_id=1, step=step, epoch=0, loss=1.0, timings=(timing(8),), exchange_seconds=0.0
    )


def logged(remaining_steps=-1, *, is_left=False, **values):
    """Each once."""
    return Logged(
        step=1,
        epoch=0,
        values={
            name: LoggedValue(step=1, count=1, mean=v, minimum=v, maximum=v, last=v)
            for name, v in values.items()
        },
        remaining_steps=remaining_steps,
        is_left=is_left,
    )


def view_of(*events):
    """After these, a second apart."""
    quality = Quality()
    for at, event in with_tables(enumerate(events)):
        quality.observe(float(at), event)
    return quality.view


def saved(step, *, is_best):
    """A checkpoint."""
    return CheckpointWritten(step=step, path=f"/{step}", num_bytes=1, metrics={}, is_best=is_best)


def test_nothing_is_told_of_nothing():
    """No line for what was not measured."""
    assert quality_in_words(view_of(JOINED)) == []


def test_the_newest_counts():
    """Of each metric and name; a checkpoint that is not best leaves the best one."""
    view = view_of(
        Evaluated(epoch=0, step=3, metrics={"accuracy": 0.5, "f1": 0.25}),
        Evaluated(epoch=1, step=6, metrics={"accuracy": math.nan}),
        logged(loss=3.0, learning_rate=0.1, norm=2.0),
        logged(norm=math.inf),
        saved(3, is_best=True),
        saved(6, is_best=False),
    )
    assert view.evaluation == {"accuracy": None, "f1": 0.25}
    assert (view.logged, view.learning_rates) == ({"norm": None}, [0.1])
    assert quality_in_words(view) == [
        "learning rate 0.1",
        "evaluated at step 6: accuracy no number  f1 0.25",
        "logged: norm no number",
        "checkpoint: step 6; best: step 3, /3",
    ]


def test_the_time_left_follows_the_pace():
    """Ten steps a second; unknown before there is a pace, and where the number of steps is."""
    assert view_of(JOINED, timed(9), logged(100)).remaining_seconds is None
    paced = JOINED, timed(9), timed(19), timed(29)
    assert view_of(*paced, logged(100)).remaining_seconds == pytest.approx(10.0)
    assert view_of(*paced, logged(-1)).remaining_seconds is None
    assert view_of(*paced, logged(0)).remaining_seconds == 0
    assert view_of(*paced, JOINED, logged(100)).remaining_seconds is None
    left = view_of(*paced, logged(99, is_left=True))
    assert (left.remaining_seconds, left.total_steps, left.progress_ratio) == (0, 100, 0.01)
    ended = RunEnded(exit_code=0, reason="done")
    assert view_of(*paced, logged(100), ended).remaining_seconds is None


def test_groups_with_rates_of_their_own():
    """All are told; a name that only looks alike is the script's."""
    view = view_of(logged(**{"learning_rate.0": 0.1, "learning_rate.1": 0.2, "learning_rate.x": 3}))
    assert view.learning_rates == [0.1, 0.2]
    assert view.logged == {"learning_rate.x": 3}


def test_times_in_words():
    """In the unit that one thinks in."""
    found = [duration(seconds) for seconds in (5.4, 90.0, 5400.0, 2.0 * 86_400)]
    assert found == ["5 s", "1.5 min", "1.5 h", "2.0 d"]
    assert QualityView() == QualityView()
