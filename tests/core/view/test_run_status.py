"""A job in one line: what it says at each moment, and what it leaves out on a narrow terminal."""

import pytest

from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.meanings import Words, fitted
from hetero_hvd.core.view.run_status import RunStatus, share_bar
from hetero_hvd.messages import (
    BatchPlan,
    Logged,
    LoggedValue,
    Ready,
    RunEnded,
    RunStarted,
    StepsTimed,
    StragglerReported,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from tests.core.view.test_live import timing

ALPHA, GAMMA = WorkerId("alpha", 0), WorkerId("gamma", 0)
STARTED = [
    (0.0, RunStarted(run_id="demo", command=("x",), nodes=("alpha",), settings={})),
    (0.0, WorkerStarted(worker=ALPHA, host="a", num_restarts=0)),
    (0.0, WorkerStarted(worker=GAMMA, host="c", num_restarts=0)),
]
READY = [
    (5.0, Ready(worker=who, host=who.node, interface="lo", pid=1, versions={}))
    for who in (ALPHA, GAMMA)
]
PLAN = BatchPlan(
    plan_id=1,
    rendezvous_id=1,
    workers=(ALPHA, GAMMA),
    local_batch_sizes=(15, 5),
    from_step=0,
    exchange_steps=10,
    reason="start",
)
JOINED = [
    (
        10.0,
        WorkersJoined(
            rendezvous_id=1,
            workers=(ALPHA, GAMMA),
            applied_steps=0,
            global_batch_size=20,
            capacities=(-1, -1),
            prefetch_steps=0,
        ),
    ),
    (10.0, PLAN),
]


def timed(at_seconds, step):
    """An exchange, and how many steps are left."""
    rows = (timing(15, 0.09, num_steps=10), timing(5, 0.09, num_steps=10))
    exchange = StepsTimed(
        rendezvous_id=1, step=step, epoch=0, loss=1.5, timings=rows, exchange_seconds=0.0
    )
    loss = LoggedValue(step=step + 1, count=1, mean=1.5, minimum=1.5, maximum=1.5, last=1.5)
    left = 80 - (step + 1)
    return [
        (at_seconds, exchange),
        (at_seconds, Logged(step=step + 1, epoch=0, values={"loss": loss}, remaining_steps=left)),
    ]


TRAINED = [*timed(11.0, 9), *timed(12.0, 19)]
SLOW = (12.0, StragglerReported(step=19, worker=GAMMA, is_slow=True, speed_ratio=0.4, cause="data"))
ENDED = (13.0, RunEnded(exit_code=0, reason=""))
LOADS = {"alpha:0": "loading the script", "gamma:0": "loading the script"}
TRAINS = "step 19  25%  6 s left  loss 1.5  200 samples/s"
SHARES = "████████████▓▓▓▓  alpha:0 15, gamma:0 5"
MOMENTS = {
    "nothing is known": ([], 0.0, {}, "starting  0 of 0 workers ready"),
    "all start": (
        STARTED, 3.0, LOADS,
        "starting 3 s  0 of 2 workers ready  loading the script: alpha:0, gamma:0",
    ),
    "for different things": (
        STARTED, 3.0, {"alpha:0": None, "gamma:0": "waiting for ssh"},
        "starting 3 s  0 of 2 workers ready  waiting for ssh: gamma:0",
    ),
    "no step yet": (
        [*STARTED, *READY, *JOINED], 11.0, {"alpha:0": None},
        "starting 11 s  2 of 2 workers ready  the first step is under way",
    ),
    "it trains": ([*STARTED, *READY, *JOINED, *TRAINED], 12.5, {}, f"{TRAINS}  {SHARES}"),
    "one is slow": (
        [*STARTED, *JOINED, *TRAINED, SLOW], 12.5, {},
        f"{TRAINS}  gamma:0 slow: data  {SHARES}",
    ),
    "one comes back": (
        [*STARTED, *JOINED, *TRAINED], 12.5, {"beta:0": "waiting for agent"},
        f"{TRAINS}  {SHARES}  waiting for agent: beta:0",
    ),
    "a pause": ([*STARTED, *JOINED, *TRAINED], 16.9, {}, f"{TRAINS}  {SHARES}"),
    "it stands": (
        [*STARTED, *JOINED, *TRAINED], 37.0, {}, f"last step 25 s ago  {TRAINS}  {SHARES}"
    ),
    "it is over": ([*STARTED, *JOINED, *TRAINED, ENDED], 60.0, {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_it_says(moment):
    """At each moment of a job."""
    history, now_seconds, waits, expected = MOMENTS[moment]
    status = RunStatus()
    for at_seconds, event in with_tables(history):
        status.observe(at_seconds, event)
    assert "  ".join(piece.text for piece in status.words(now_seconds, waits)) == expected


WIDTHS = {
    200: f"last step 25 s ago  {TRAINS}  gamma:0 slow: data  {SHARES}",
    100: f"last step 25 s ago  {TRAINS}  gamma:0 slow: data",
    60: "last step 25 s ago  step 19  6 s left  gamma:0 slow: data",
    40: "last step 25 s ago  step 19",
    12: "last step 2…",
    1: "…",
}


@pytest.mark.parametrize("num_columns", WIDTHS)
def test_what_is_left_out_where_there_is_no_room(num_columns):
    """The bar before the speed, the speed before who is slow; that it stands never."""
    status = RunStatus()
    for at_seconds, event in with_tables([*STARTED, *JOINED, *TRAINED, SLOW]):
        status.observe(at_seconds, event)
    shown = "  ".join(piece.text for piece in fitted(status.words(37.0, {}), num_columns))
    assert shown == WIDTHS[num_columns]


def test_many_workers_are_counted():
    """A line does not grow with the cluster."""
    waits = {f"n{number}:0": "loading the script" for number in range(9)}
    (*_, last) = RunStatus().words(0.0, waits)
    assert last.text == "loading the script: n0:0, n1:0, n2:0, n3:0 and 5 more"


BARS = {
    (1, 1): "████▓▓▓▓",
    (3, 1): "██████▓▓",
    (0, 5): "▓▓▓▓▓▓▓▓",
    (1, 1, 1, 1, 1): "██▓▒▒░██",
    (0, 0): "",
    (): "",
}


@pytest.mark.parametrize("shares", BARS)
def test_shares_as_a_bar(shares):
    """Its parts are in proportion, and it is never longer than it should be."""
    assert share_bar(list(shares), 8) == BARS[shares]


def test_pieces_of_one_rank_go_from_the_end():
    """And those without a rank stay, whatever comes."""
    pieces = [Words("always"), Words("one", rank=1), Words("two", rank=1)]
    assert [piece.text for piece in fitted(pieces, 12)] == ["always", "one"]
