"""The live view is a fold over a run's events, and says who is slow and why."""

import json

import msgspec
import pytest

from hetero_hvd.cli.watch.live_table import table_of
from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.live import MAX_EVENTS, LiveView, severity_of
from hetero_hvd.messages import (
    DRAINED,
    DeviceUsed,
    Finding,
    GuardReported,
    Logged,
    RunEnded,
    RunStarted,
    SetAsideReported,
    StepsTimed,
    StepTiming,
    StragglerReported,
    WorkerExited,
    WorkerId,
    WorkerQuarantined,
    WorkersJoined,
    WorkerStarted,
)

ALPHA, GAMMA = WorkerId("alpha", 0), WorkerId("gamma", 0)
NAN = float("nan")


def timing(samples, backward, *, comm=0.0, num_steps=4, data_wait=0.0):
    """A row."""
    return StepTiming(
        num_steps=num_steps,
        local_batch_size=samples,
        memory_bytes=NAN,
        data_wait_seconds=data_wait,
        transfer_seconds=0.0,
        forward_seconds=0.01,
        backward_seconds=backward,
        comm_wait_seconds=comm,
        optimizer_seconds=0.0,
        step_seconds=data_wait + 0.01 + backward + comm,
        other_seconds=0.0,
    )


def joined_by(*workers, rendezvous_id=1):
    """A membership."""
    return WorkersJoined(
        rendezvous_id=rendezvous_id,
        workers=workers,
        applied_steps=0,
        global_batch_size=20,
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
    )


def view_of(*rows, events=()):
    """The state after an exchange of two workers, and some more events."""
    started = RunStarted(run_id="demo", command=("x",), nodes=("alpha",), settings={})
    history = [(0.0, started), (1.0, joined_by(ALPHA, GAMMA))]
    for step in (9, 19) if rows else ():  # the first of a membership contains its start
        timed = StepsTimed(
            rendezvous_id=1, step=step, epoch=0, loss=1.5, timings=rows, exchange_seconds=0.0
        )
        history.append((2.0, timed))
    history += [(3.0, event) for event in events]
    diagnoser = Diagnoser()
    view = LiveView(diagnoser.findings)
    for at_seconds, event in with_tables(history):
        diagnoser.observe(event)
        view.observe(at_seconds, event)
    return view.state()


def test_nothing_is_said_before_anything_is_measured():
    """Without timings the view abstains: no zeros, no verdict."""
    state = view_of()
    assert all(sentence.startswith("INCOMPLETE: ") for sentence in state.verdict)
    assert [(w.name, w.state, w.speed_ratio) for w in state.workers] == [
        ("alpha:0", "training", None),
        ("gamma:0", "training", None),
    ]
    idle = timing(0, NAN, num_steps=0)
    assert view_of(idle, idle).verdict == state.verdict


def test_a_worker_without_samples_has_no_speed():
    """It is not known, and not zero."""
    state = view_of(timing(20, 0.09), timing(0, 0.0))
    assert [worker.speed_ratio for worker in state.workers] == [1.0, None]
    assert [worker.samples_per_second for worker in state.workers][1] is None


def test_the_slowest_worker_is_named_with_its_phase():
    """Uniform shares on unequal machines: who, how slow, where its time goes, what is left."""
    state = view_of(timing(10, 0.09, comm=0.3), timing(10, 0.39))
    assert state.verdict[0].startswith(
        "imbalance left: the others wait for gamma:0; gamma:0 does 10 of 20 samples in 400 ms of "
        "its own, 98% of that in backward, alpha:0 10 in 100 ms"
    )
    assert state.samples_per_second == 20 / 0.4


def test_a_slow_machine_with_a_fitting_share_is_not_blamed():
    """The sentence says what each does in its time: how fast it is cannot be seen from that."""
    state = view_of(timing(16, 0.15), timing(4, 0.15))
    assert "gamma:0 does 4 of 20 samples in 160 ms of its own" in state.verdict[-1]
    assert state.verdict[0].startswith("bound by compute")


def test_equal_workers_are_not_called_slow():
    """A tenth of difference is noise."""
    state = view_of(timing(10, 0.09), timing(10, 0.095))
    assert state.verdict[-1].endswith("all do as much in their time")


def test_a_straggler_comes_first_and_goes_when_it_is_well():
    """The watch's verdict is shown with its cause until it is withdrawn."""
    slow = StragglerReported(step=40, worker=ALPHA, is_slow=True, speed_ratio=0.5, cause="input")
    well = StragglerReported(step=80, worker=ALPHA, is_slow=False, speed_ratio=1.0, cause=None)
    rows = timing(10, 0.09), timing(10, 0.39)
    assert (
        view_of(*rows, events=(slow,))
        .verdict[0]
        .startswith(
            "alpha:0 is slow since step 40: 0.50 of its own speed (input: it waits for its data)"
        )
    )
    assert "alpha:0 was slow from" in view_of(*rows, events=(slow, well)).verdict[0]


def test_a_straggler_that_leaves_is_not_marked_when_it_comes_back():
    """It is judged anew then; until that nobody knows how fast it is."""
    slow = StragglerReported(step=40, worker=ALPHA, is_slow=True, speed_ratio=0.5, cause="input")
    left = joined_by(GAMMA, rendezvous_id=2)
    back = joined_by(ALPHA, GAMMA, rendezvous_id=3)
    for events, marked in (((slow,), 40), ((slow, back), 40), ((slow, left), None)):
        state = view_of(timing(10, 0.09), timing(10, 0.09), events=(*events, back))
        assert state.workers[0].slow_since_step == marked


def test_nobody_is_marked_by_the_start_before():
    """Also where a worker leads, and no driver tells that it starts the others."""
    slow = StragglerReported(step=40, worker=ALPHA, is_slow=True, speed_ratio=0.5, cause="input")
    again = (
        RunEnded(exit_code=0, reason="left"),
        RunStarted(run_id="demo", command=("x",), nodes=("alpha",), settings={}),
        joined_by(ALPHA, GAMMA, rendezvous_id=2),
    )
    for events, marked in (((slow,), ["alpha:0"]), ((slow, *again), [])):
        state = view_of(timing(10, 0.09), timing(10, 0.09), events=events)
        assert [view.name for view in state.workers if view.slow_since_step is not None] == marked
        assert [view.name for view in state.workers if view.slow_cause is not None] == marked


def test_the_view_is_bounded_and_plain_json():
    """However long the run, the events kept are few; unmeasured values become null, not NaN."""
    restarts = [WorkerStarted(worker=ALPHA, host=f"a.r{n}", num_restarts=n) for n in range(1, 500)]
    end = RunEnded(exit_code=0, reason="done")
    state = view_of(timing(10, 0.09), timing(10, 0.09), events=(*restarts, end))
    assert len(state.events) == MAX_EVENTS
    plain = json.loads(msgspec.json.encode(state))
    assert plain["workers"][0]["memory_bytes"] is None
    assert (plain["state"], plain["workers"][0]["restarts"]) == ("ended", 499)


def test_the_use_of_a_gpu_is_shown_as_it_was_told():
    """Of its worker alone; a dash, not zero, where nobody has measured it."""
    used = DeviceUsed(worker=GAMMA, step=19, utilization_ratio=0.87)
    state = view_of(timing(10, 0.09), timing(10, 0.09), events=[used])
    assert [worker.device_utilization_ratio for worker in state.workers] == [None, 0.87]
    rows = [line for line in table_of(state) if line.startswith(("alpha", "gamma"))]
    assert ["87%" in row for row in rows] == [False, True]


LET_GO = {
    "drained": (
        GuardReported(
            what="drained", node="gamma", device="GPU 0", words="GPU 0 is hot", workers=(GAMMA,)
        ),
        "guard: GPU 0 is hot",
    ),
    "set aside": (
        SetAsideReported(what="tried", step=9, words="no samples", workers=(GAMMA,)),
        "step 9: no samples",
    ),
}


@pytest.mark.parametrize("state", LET_GO)
def test_a_worker_that_was_let_go_for_now_is_shown_as_such(state):
    """With the reason, until it is started again."""
    drained, words = LET_GO[state]
    left = WorkerExited(worker=GAMMA, host="gamma-0", exit_code=0, words="has ended")
    back = WorkerStarted(worker=GAMMA, host="gamma-0.r1", num_restarts=0)
    found = [view_of(events=events) for events in ([drained, left], [drained, left, back])]
    assert [view.workers[1].state for view in found] == [state, "starting"]
    assert words in [said for _, said in found[0].events]


def test_who_was_drained_has_no_share_any_more():
    """Neither in its row nor among what went wrong."""
    gone = WorkerQuarantined(worker=GAMMA, reason=DRAINED)
    left = WorkerExited(worker=GAMMA, host="gamma-0", exit_code=0, words="has ended")
    others = WorkersJoined(
        rendezvous_id=2,
        workers=(ALPHA,),
        applied_steps=20,
        global_batch_size=20,
        capacities=(-1,),
        prefetch_steps=0,
    )
    rows = timing(12, 0.1), timing(8, 0.1)
    assert view_of(*rows).workers[1].share == 8
    found = view_of(*rows, events=[gone, others, left]).workers[1]
    assert (found.state, found.share) == ("drained", None)


def test_tight_memory_is_shown_and_room_is_not():
    """The head room of a healthy run is no news for its viewers."""
    roomy = msgspec.structs.replace(timing(10, 0.09), memory_bytes=40.0, memory_limit_bytes=100.0)
    tight = msgspec.structs.replace(roomy, memory_bytes=95.0)
    assert not any("memory" in sentence for sentence in view_of(roomy, roomy).verdict)
    assert "memory is tight: gamma:0 uses" in view_of(roomy, tight).verdict[-2]


def test_the_last_batch_of_an_epoch_changes_no_share():
    """It may be smaller; the shares on the page do not flicker with it."""
    rows = timing(12, 0.1), timing(8, 0.1)
    smaller = StepsTimed(
        rendezvous_id=1,
        step=29,
        epoch=0,
        loss=1.5,
        timings=(timing(3, 0.1), timing(2, 0.1)),
        exchange_seconds=0.0,
    )
    assert [worker.share for worker in view_of(*rows, events=(smaller,)).workers] == [12, 8]


def test_progress_is_told_with_its_times():
    """When it began, took its last step, ended; how many steps there are to be."""
    rows = timing(12, 0.1), timing(8, 0.1)
    logged = Logged(step=20, epoch=0, values={}, remaining_steps=80)
    state = view_of(*rows, events=(logged,))
    assert (state.started_at_unix_seconds, state.stepped_at_unix_seconds) == (0.0, 2.0)
    assert (state.quality.total_steps, state.ended_at_unix_seconds) == (100, None)
    over = view_of(*rows, events=(logged, RunEnded(exit_code=0, reason="done")))
    assert over.ended_at_unix_seconds == 3.0


ENDINGS = {
    "at its last step": (20, 0, "the training is finished", "the training is finished"),
    "stopped": (20, 80, "ended by SIGINT", "stopped at step 10 of 100: ended by SIGINT"),
    "nobody knows how far it was to go": (20, -1, "ended by SIGINT", "ended by SIGINT"),
}
"""Steps told, steps left, the reason of the end, and what is said of it."""


@pytest.mark.parametrize(("step", "left", "reason", "words"), ENDINGS.values(), ids=ENDINGS)
def test_an_end_says_how_far_the_run_came(step, left, reason, words):
    """And part of a training that was left is no whole one; a run that is gone on with trains."""
    rows = timing(12, 0.1), timing(8, 0.1)
    total = None if left < 0 else step + left
    logged = Logged(step=step, epoch=0, values={}, remaining_steps=left, is_left=left > 0)
    ended = RunEnded(exit_code=0, reason=reason)
    state = view_of(*rows, events=(logged, ended))
    assert state.ending == words.replace("step 10", f"step {state.step + 1}")
    assert (state.quality.total_steps, state.quality.remaining_seconds) == (total, None)
    assert state.quality.progress_ratio == (total and step / total)
    again = RunStarted(run_id="x", command=(), nodes=(), settings={})
    assert view_of(*rows, events=(logged, ended, again)).ending == ""


FINDINGS = {
    "bad": Finding(kind="stall", is_complete=True, words="nobody steps"),
    "warning": Finding(kind="straggler", is_complete=True, words="beta:0 is slow"),
    "info": Finding(kind="compute", is_complete=True, words="bound by compute"),
    "unknown": Finding(kind="memory", is_complete=False, words="not measured"),
}


@pytest.mark.parametrize(("severity", "finding"), FINDINGS.items(), ids=FINDINGS)
def test_a_sentence_says_how_much_it_matters(severity, finding):
    """What is over is information, whatever it was."""
    assert severity_of(finding) == severity
    if finding.is_complete:
        assert severity_of(msgspec.structs.replace(finding, is_past=True)) == "info"


@pytest.mark.parametrize(("gain", "severity"), [(0.5, "warning"), (0.02, "info"), (None, "info")])
def test_what_could_be_gained_is_a_warning_where_it_is_much(gain, severity):
    """Of throughput."""
    found = Finding(kind="imbalance", is_complete=True, words="x", max_gain_ratio=gain)
    assert severity_of(found) == severity
