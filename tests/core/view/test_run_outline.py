"""What the hub is told of a run follows from its events, and is bounded."""

from __future__ import annotations

import msgspec

from hetero_hvd.core.recording.runs import MAX_MARKS, MAX_TEXT, RunReport
from hetero_hvd.core.view.run_outline import RunOutline
from hetero_hvd.messages import (
    BatchPlan,
    Finished,
    RunEnded,
    RunStarted,
    SessionsWanted,
    StepsTimed,
    WorkerExited,
    WorkerId,
    WorkersJoined,
)

A, B = WorkerId("alpha", 0), WorkerId("beta", 0)
STARTED = RunStarted(run_id="demo-1", command=(), nodes=("alpha",), settings={}, name="demo")


def joined(*workers):
    """A membership."""
    return WorkersJoined(
        rendezvous_id=1, workers=workers, applied_steps=0, global_batch_size=8,
        capacities=(-1,) * len(workers), prefetch_steps=0,
    )  # fmt: skip


def plan(*shares, number=1):
    """A division among the first workers."""
    return BatchPlan(
        rendezvous_id=1, plan_id=number, from_step=3, exchange_steps=1,
        workers=(A, B)[: len(shares)], local_batch_sizes=shares, reason="is faster",
    )  # fmt: skip


def timed(step):
    """An exchange."""
    return StepsTimed(
        rendezvous_id=1, step=step, epoch=0, loss=1.0, timings=(), exchange_seconds=0.0
    )


def told(events, from_mark=0):
    """The report after events, one each second."""
    outline = RunOutline("host", "/runs/demo")
    for second, event in enumerate(events):
        outline.observe(float(second), event)
    report = outline.report(float(len(events)), None, from_mark)
    # As it goes over the link.
    packed = msgspec.msgpack.encode(msgspec.to_builtins(report))
    return msgspec.convert(msgspec.msgpack.decode(packed), RunReport)


def test_a_run_in_short():
    """Who takes part, how far it is, what changed when, and how it ended."""
    exits = WorkerExited(worker=B, host="b", exit_code=1, words="is lost")
    report = told(
        [
            STARTED, joined(A, B), plan(4, 4), timed(7), plan(4, 4, number=2), plan(6, 2),
            SessionsWanted(worker=A, names=("load",)), SessionsWanted(worker=B, names=("load",)),
            SessionsWanted(worker=A, names=()), exits, RunEnded(exit_code=3, reason="why\nnot"),
        ]
    )  # fmt: skip
    assert (report.run_id, report.name, report.nodes) == ("demo-1", "demo", ("alpha", "beta"))
    assert (report.started_at_seconds, report.last_step) == (0.0, 7)
    assert (report.ended_at_seconds, report.exit_code) == (10.0, 3)
    assert report.reason == r"why\nnot"
    assert [(mark.at_seconds, mark.kind) for mark in report.marks] == [
        (1.0, "reset"), (2.0, "plan"), (5.0, "plan"), (6.0, "phase"), (9.0, "phase"),
    ]  # fmt: skip
    texts = [mark.text for mark in report.marks]
    assert texts[0] == "step 0: 2 workers train: alpha:0, beta:0"
    assert texts[2] == "step 3: shares alpha:0 6, beta:0 2: is faster"
    assert texts[3:] == ["phase load begins", "phase load ends"]


def test_the_last_step_is_that_of_the_training():
    """Also where nobody has timed it; one that never trained has none."""
    ends = Finished(worker=A, applied_steps=474, checksum="")
    assert told([STARTED, timed(382), ends]).last_step == 473
    never = Finished(worker=A, applied_steps=0, checksum="")
    assert told([STARTED, never]).last_step is None


def test_only_what_is_asked_for_is_told_again():
    """By number; what is not kept any more is left out, and a number that is none asks for all."""
    events = [STARTED, *(plan(n, 8 - n, number=n) for n in range(MAX_MARKS + 10))]
    for asked, first in ((0, 10), (10, 10), (MAX_MARKS, MAX_MARKS), (10**9, MAX_MARKS + 10)):
        report = told(events, asked)
        assert (report.first_mark, len(report.marks)) == (first, MAX_MARKS + 10 - first)


def test_whatever_names_are_like_a_report_fits():
    """Long ones are cut, and none is other than a link carries."""
    workers = tuple(WorkerId(f"node{n}", 0) for n in range(3000))
    name = msgspec.structs.replace(STARTED, name="\udcff" * 5000)
    report = told([name, joined(*workers)])
    assert len(report.name) == len(report.marks[0].text) == MAX_TEXT
    assert len(msgspec.msgpack.encode(report)) < 2**16
