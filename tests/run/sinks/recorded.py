"""A recorded run that has everything that a sink can be told of."""

from __future__ import annotations

import math

from hetero_hvd.messages import (
    CheckpointWritten,
    Evaluated,
    Logged,
    LoggedValue,
    RunEnded,
    RunStarted,
)
from tests.run.records.test_records import JOINED, timed, timing

ACCURACY = 0.9388888888888889
"""Has no equal among numbers of 32 bits."""

LOSS, RATE = 1 / 3, 0.1
STARTED = RunStarted(
    run_id='r"ün,= 1',
    command=("python", "train.py"),
    nodes=("alpha",),
    settings={"rule": "x"},
    name="größe 'q'",
    tags={"lr": "0.1", "note": 'a "b"'},
)


def value(step, mean):
    """Logged three times."""
    return LoggedValue(step=step, count=3, mean=mean, minimum=mean, maximum=mean, last=mean)


LOGGED = Logged(
    step=20,
    epoch=0,
    values={
        "loss": value(20, LOSS),
        "learning_rate": value(20, RATE),
        "nothing": value(19, math.nan),
        "much": value(18, math.inf),
    },
    remaining_steps=30,
)
EVALUATED = Evaluated(epoch=0, step=30, metrics={"accuracy": ACCURACY, 'F1 "größe", a=b': 0.5})
WRITTEN = CheckpointWritten(
    step=30, path="/x", num_bytes=3, metrics={"accuracy": ACCURACY}, is_best=True
)
ROWS = timing(8), timing(4)
EVENTS = (
    STARTED,
    JOINED,
    timed(9, *ROWS),
    timed(19, *ROWS),
    timed(29, *ROWS),
    LOGGED,
    EVALUATED,
    WRITTEN,
    RunEnded(exit_code=0, reason="done"),
)
