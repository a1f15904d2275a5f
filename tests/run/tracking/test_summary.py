"""What is counted during a run, and how it is told."""

import io
import json
import math
from types import SimpleNamespace

import msgspec
import pytest

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.driver.output.console import Console
from hetero_hvd.messages import (
    BatchPlan,
    Evaluated,
    Finished,
    Heartbeat,
    Recovered,
    ScriptEnded,
    StepsTimed,
    StepTiming,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records import run_files
from hetero_hvd.run.tracking import balancing, diagnosis
from hetero_hvd.run.tracking.final_report import as_dict, as_text
from hetero_hvd.run.tracking.run_tracker import MAX_RESETS_WITHOUT_STEP, RunTracker
from hetero_hvd.run.tracking.summary import Summary
from tests.module_clock import give_clock

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)


def joined(rendezvous_id=1, applied_steps=0, workers=(ALPHA, BETA), **ways):
    """A rendezvous of workers with a global batch of 100."""
    return WorkersJoined(
        rendezvous_id=rendezvous_id,
        workers=workers,
        applied_steps=applied_steps,
        global_batch_size=100,
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
        **ways,
    )


def row(share, busy_seconds, step_seconds, num_steps=1):
    """One worker's timing; all its busy time is forward."""
    return StepTiming(
        num_steps=num_steps,
        local_batch_size=share,
        memory_bytes=math.nan,
        data_wait_seconds=0.0,
        transfer_seconds=0.0,
        forward_seconds=busy_seconds,
        backward_seconds=0.0,
        comm_wait_seconds=0.0,
        optimizer_seconds=0.0,
        step_seconds=step_seconds,
    )


def timed(step, *rows, rendezvous_id=1):
    """An exchange."""
    return StepsTimed(
        rendezvous_id=rendezvous_id,
        step=step,
        epoch=0,
        loss=1.0,
        timings=rows,
        exchange_seconds=0.0,
    )


UNIFORM = (row(50, 0.05, 0.2), row(50, 0.2, 0.2))
BALANCED = (row(80, 0.08, 0.08), row(20, 0.08, 0.08))


def summary_of(history, *, baseline_steps):
    """What is counted of it."""
    summary = Summary(baseline_steps=baseline_steps)
    for at_seconds, event in with_tables((0.0, event) for event in history):
        summary.observe(at_seconds, event)
        summary.observe_tables(at_seconds, event)
    return summary


def full_summary():
    """A run: 4 uniform steps, 3 on the way, then balanced; one reset; both finish."""
    history = [joined(), *(timed(step, *UNIFORM) for step in range(7))]
    history.append(joined(rendezvous_id=2, applied_steps=7))
    history += [timed(step, *BALANCED, rendezvous_id=2) for step in range(7, 20)]
    summary = summary_of(history, baseline_steps=4)
    plans = ((99, 1), 0.125), ((50, 50), 0.0), ((50, 50), 0.0), ((80, 20), 0.0)
    for number, (shares, ratio) in enumerate(plans):
        plan = BatchPlan(
            rendezvous_id=1,
            plan_id=number,
            from_step=max(0, number - 1) * 3,
            exchange_steps=1,
            workers=(ALPHA, BETA),
            local_batch_sizes=shares,
            reason="",
            calibration_ratio=ratio,  # of the first: no step is taken by it
        )
        summary.observe(0.0, plan)
    summary.evaluated = Evaluated(epoch=1, step=20, metrics={"accuracy": 0.5, "loss": math.nan})
    for worker in (ALPHA, BETA):
        record = summary.workers[worker]
        record.recoveries.append(
            Recovered(worker=worker, rendezvous_id=2, cause="fault", seconds=0.5, broadcast=False)
        )
        summary.finished(Finished(worker=worker, applied_steps=20, checksum="abc"))
        record.exit_codes.append(0)
    return summary


def test_the_summary_of_a_run():
    """Uniform and balanced speed of the same run, the ideal, and when balance was reached."""
    facts = as_dict(full_summary(), exit_code=0, reason="done")
    assert facts["steps"] == 20
    assert facts["samples"] == 2000
    assert facts["uniform_samples_per_second"] == pytest.approx(500)
    assert facts["balanced_samples_per_second"] == pytest.approx(1250)
    assert facts["balanced_by_uniform_ratio"] == pytest.approx(2.5)
    assert facts["share_of_ideal_ratio"] == pytest.approx(1)
    assert facts["steps_until_balanced"] == 4  # step 7 starts anew, step 8 is the first that counts
    assert facts["memberships"] == 2
    assert facts["replicas_equal"] is True
    assert facts["workers"]["alpha:0"]["shares"] == [(0, 50), (6, 80)]
    assert facts["workers"]["alpha:0"]["mean_busy_seconds"] == pytest.approx(0.08)
    assert json.loads(msgspec.json.encode(facts))["evaluation"]["metrics"]["loss"] is None


def finished(steps, worker=ALPHA):
    """A loop over epochs is through."""
    return Finished(worker=worker, applied_steps=steps, checksum="")


LOOPS = {
    "none": ([], 0),
    "one under way": ([joined(), timed(8, *UNIFORM)], 9),
    "one that is through": ([joined(), timed(8, *UNIFORM), finished(12)], 12),
    "gone on with": ([joined(applied_steps=30), timed(38, *UNIFORM), finished(40)], 40),
    "gone back to a checkpoint": (
        [joined(), timed(30, *UNIFORM), joined(2, 20), timed(22, *UNIFORM, rendezvous_id=2)],
        31,
    ),
    "two": ([joined(), timed(8, *UNIFORM), finished(12), joined(2), finished(5)], 17),
    "the second is longer": ([joined(), finished(12), joined(2), finished(50)], 62),
    "the second under way": (
        [joined(), finished(12), joined(2), timed(2, *UNIFORM, rendezvous_id=2)],
        15,
    ),
    "three": ([joined(), finished(3), joined(2), finished(4), joined(3), finished(5)], 12),
    "both workers are through": ([joined(), finished(12), finished(12, BETA)], 12),
    "a loss while the others end": (
        [joined(), finished(12), joined(2, 12, (ALPHA,)), finished(12)],
        12,
    ),
}


@pytest.mark.parametrize("case", LOOPS)
def test_the_steps_of_all_loops_are_counted(case):
    """Of a script that trains one thing after the other."""
    events, steps = LOOPS[case]
    summary = summary_of(events, baseline_steps=0)
    assert as_dict(summary, exit_code=0, reason="done")["steps"] == steps


def test_steps_until_balanced_count_from_where_a_run_goes_on():
    """Those before were of another run."""
    history = [joined(applied_steps=200), *(timed(step, *BALANCED) for step in range(200, 220))]
    summary = summary_of(history, baseline_steps=4)
    assert summary.steps_until_balanced == 1  # the first exchange contains the start
    assert summary.num_steps == 220


def test_the_summary_in_words():
    """A person finds the same numbers."""
    text = "\n".join(as_text(as_dict(full_summary(), exit_code=0, reason="done")))
    for part in (
        "uniform shares       500",
        "balanced / uniform   2.50",
        "share 50 > 80",
        "longest 0.50 s",
    ):
        assert part in text


@pytest.mark.parametrize("baseline_steps", [0, 10, 2**63])
@pytest.mark.parametrize("way", ["shares_vary", "shares_fixed"])
def test_where_shares_follow_no_plan_the_speed_is_that_of_all_steps(way, baseline_steps):
    """Nothing is said of balanced ones, and batches are as large as they were on average."""
    slow, fast = (row(70, 0.1, 0.2), row(30, 0.2, 0.2)), (row(160, 0.1, 0.1), row(40, 0.1, 0.1))
    tables = (timed(step, *(slow if step <= 10 else fast)) for step in range(21))
    summary = summary_of([joined(**{way: True}), *tables], baseline_steps=baseline_steps)
    facts = as_dict(summary, exit_code=0, reason="done")
    assert facts["samples"] == 21 * 150
    text = "\n".join(as_text(facts))
    for part in ("21 of 150 samples on average", "speed                1000 ", "share 115 on"):
        assert part in text
    assert not any(word in text for word in ("balanced", "uniform"))


def test_where_nothing_was_measured_no_batch_size_is_told():
    """The first exchange contains the start."""
    summary = summary_of([joined(shares_fixed=True), timed(0, *BALANCED)], baseline_steps=0)
    assert "  steps                1" in as_text(as_dict(summary, exit_code=0, reason="done"))


KILLED, WELL = "was ended by SIGKILL", "ended well"
CODES = {
    "well": ([0], False, ""),
    "by a fault": ([137], False, KILLED),
    "by a fault, and well the second time": ([137, 0], False, f"{KILLED}, then {WELL}"),
    "by the same fault twice": ([137, 137, 0], False, f"{KILLED} (2 times), then {WELL}"),
    "by us, as the job was over": ([143], True, ""),
    "first by a fault, then by us": (
        [1, 137],
        True,
        "exited with code 1, then was ended with the job",
    ),
}


@pytest.mark.parametrize(("codes", "is_ours", "words"), CODES.values(), ids=CODES)
def test_how_a_worker_has_ended_is_told_unless_we_have_ended_it(codes, is_ours, words):
    """Who interrupts a job asks for no signals that it has sent then."""
    summary = full_summary()
    summary.workers[ALPHA].exit_codes[:] = codes
    summary.workers[ALPHA].is_ended_by_driver = is_ours
    summary.workers[BETA].exit_codes[:] = [0]
    lines = list(as_text(as_dict(summary, exit_code=130, reason="interrupted")))
    told = [line.split("  ")[-1] for line in lines if " was ended" in line or " exited" in line]
    assert told == ([words] if words else [])


def test_a_run_that_never_trained_has_a_short_summary():
    """The reason, and nothing made up."""
    facts = as_dict(Summary(baseline_steps=0), exit_code=1, reason="no worker")
    assert list(as_text(facts)) == ["ended: no worker"]
    assert facts["balanced_samples_per_second"] is None
    assert facts["replicas_equal"] is None


def test_different_replicas_are_shouted_about():
    """Silent divergence is the worst end of a training."""
    summary = full_summary()
    summary.workers[BETA].finished = Finished(worker=BETA, applied_steps=20, checksum="xyz")
    facts = as_dict(summary, exit_code=0, reason="done")
    assert facts["replicas_equal"] is False
    assert any("REPLICAS DIFFER" in line for line in as_text(facts))


@pytest.mark.parametrize(
    ("ends", "are_equal"),
    [
        ((("abc", "card"), ("abd", "x86_64")), True),  # they round differently
        ((("abc", "card"), ("abd", "card")), False),
        ((("abc", ""), ("abd", "")), False),
        ((("", "card"), ("", "x86_64")), None),
    ],
)
def test_scripts_that_end_early_differ_only_where_they_round_alike(ends, are_equal):
    """What they hold was not made equal by a comparison at the end of training."""
    summary = full_summary()
    for worker, (checksum, arithmetic) in zip((ALPHA, BETA), ends, strict=True):
        record = summary.workers[worker]
        record.finished = None
        record.script_ended = ScriptEnded(
            applied_steps=20, checksum=checksum, arithmetic=arithmetic
        )
    assert summary.is_consistent is are_equal


class Books:
    """A tracker with a bus of its own."""

    def __init__(self, folder, **job):
        self.stream = io.StringIO()
        self.console = Console(self.stream)
        nodes = (NodeConfig(name="alpha"), NodeConfig(name="beta", relative_speed=0.5))
        config = ClusterConfig(job=JobConfig(**job), nodes=nodes)
        self.bus = EventBus()
        self.tracker = RunTracker(config, self.console.say, folder, self.bus)
        self.plans = []
        self.bus.subscribe(self._note, "")

    def _note(self, _at, event):
        if isinstance(event, BatchPlan):
            self.plans.append(event)

    def take(self, event):
        """Publish an event; gives the plans that follow."""
        self.plans = []
        self.bus.publish(event)
        return self.plans

    def close(self):
        """Close its files; gives what was said."""
        self.tracker.close()
        self.console.close()
        return self.stream.getvalue()


@pytest.fixture(name="books")
def open_books(tmp_path):
    """Books in a folder of their own."""
    opened = Books(tmp_path, progress_seconds=0.001)
    yield opened
    opened.close()


def test_the_balancer_is_asked_and_its_decisions_are_kept(tmp_path, books):
    """A membership gets its plan at once, using the hints; uneven timings bring a better one."""
    [first] = books.take(joined())
    assert first.local_batch_sizes == (67, 33)
    plans = []
    for step in range(10):
        plans += books.take(timed(step, row(67, 0.067, 0.33), row(33, 0.33, 0.33)))
    assert plans[-1].local_batch_sizes[0] > 67
    assert books.take(timed(11, *UNIFORM, rendezvous_id=7)) == []
    said = books.close()
    decisions = [
        json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()
    ]
    assert {"step", "action", "reason", "workers"} <= decisions[0].keys()
    assert decisions[0]["workers"] == ["alpha:0", "beta:0"]
    assert "step 0: 2 workers train together: alpha:0, beta:0" in said
    assert "alpha:0 67 in 67 ms | beta:0 33 in 330 ms" in said


def test_another_job_holds_up_no_step_but_the_end_waits_for_it(tmp_path, monkeypatch):
    """Which is changing what jobs know of the workers."""
    (tmp_path / "run").mkdir()
    slept = []
    monkeypatch.setattr(balancing, "SAVE_SECONDS", -1.0)

    def sleep(seconds):
        slept.append(seconds)
        raise BlockingIOError

    give_clock(monkeypatch, run_files, sleep=sleep)
    books = Books(tmp_path / "run")
    books.take(joined())

    def meanwhile(content):
        for step in range(10):
            books.take(timed(step, *UNIFORM))
        assert not slept
        return content

    run_files.change_file(tmp_path / "curves.json", meanwhile)
    assert (tmp_path / "curves.json").read_bytes() == b""
    books.take(timed(10, *UNIFORM))
    assert b"alpha:0" in (tmp_path / "curves.json").read_bytes()

    def until_it_is_asked_for(content):
        books.close()
        assert slept
        return content

    run_files.change_file(tmp_path / "curves.json", until_it_is_asked_for)


def test_resets_without_a_step_are_counted(books):
    """A job whose every step breaks must not go on for ever."""
    for rendezvous_id in range(1, MAX_RESETS_WITHOUT_STEP + 2):
        books.take(joined(rendezvous_id=rendezvous_id, applied_steps=5))
    assert books.tracker.resets_without_step == MAX_RESETS_WITHOUT_STEP
    books.take(joined(rendezvous_id=100, applied_steps=6))
    assert books.tracker.resets_without_step == 0


def test_trainers_one_after_the_other_are_no_resets_without_a_step(books):
    """Each begins at step 0 again: as many as a search over learning rates needs."""
    for rendezvous_id in range(1, 2 * MAX_RESETS_WITHOUT_STEP):
        books.take(joined(rendezvous_id=rendezvous_id, applied_steps=0))
        for worker in (WorkerId("alpha", 0), WorkerId("beta", 0)):
            books.tracker.summary.entered(worker, rendezvous_id)
            books.take(Finished(worker=worker, applied_steps=2, checksum=f"{rendezvous_id}"))
        assert books.tracker.resets_without_step < MAX_RESETS_WITHOUT_STEP


ENTERS, FINISHES, DIES = "begins the next loop", "is through with it", "dies"

RESULTS = {
    "all are through": ((), {ALPHA, BETA}),
    "one dies after its result": (((ALPHA, DIES),), {ALPHA, BETA}),
    "one dies, then the other begins": (((ALPHA, DIES), (BETA, ENTERS)), set()),
    "the other begins, then one dies": (((BETA, ENTERS), (ALPHA, DIES)), set()),
    "who is left is through": (((BETA, ENTERS), (ALPHA, DIES), (BETA, FINISHES)), {BETA}),
    "all are through again": (
        ((BETA, ENTERS), (ALPHA, ENTERS), (ALPHA, FINISHES), (BETA, FINISHES)),
        {ALPHA, BETA},
    ),
    "the other's beginning is heard of late": (
        ((ALPHA, ENTERS), (ALPHA, FINISHES), (BETA, ENTERS)),
        {ALPHA},
    ),
    "the other's end is heard of late": (((ALPHA, ENTERS), (BETA, FINISHES)), set()),
}
"""What happens once all are through with the first loop, and whose results count then."""


@pytest.mark.parametrize(("events", "expected"), RESULTS.values(), ids=RESULTS)
def test_the_results_of_a_run_are_those_of_the_newest_loop_that_was_begun(books, events, expected):
    """Whoever has told of an earlier one has no say in it, whether it has died since or not."""
    loops = dict.fromkeys((ALPHA, BETA), 0)
    books.take(joined())
    first = [(worker, kind) for kind in (ENTERS, FINISHES) for worker in loops]
    for worker, kind in (*first, *events):
        if kind == ENTERS:
            loops[worker] += 1
            books.tracker.summary.entered(worker, loops[worker])
        elif kind == FINISHES:
            told = f"of loop {loops[worker]}"
            books.take(Finished(worker=worker, applied_steps=12, checksum=told))
        else:
            books.tracker.summary.workers[worker].exit_codes.append(137)
    records = books.tracker.summary.workers
    assert {worker for worker in loops if records[worker].finished} == expected
    assert books.tracker.summary.is_consistent is (True if expected else None)


def test_that_nobody_steps_is_said_while_it_lasts(books, monkeypatch):
    """On the terminal and in the judgement, from the workers' heartbeats; and its end."""
    now = SimpleNamespace(seconds=100.0)
    give_clock(monkeypatch, diagnosis, monotonic=lambda: now.seconds)
    books.take(joined())
    for second in range(16):
        now.seconds += 1.0
        steps = 1 + second // 14
        books.tracker.diagnosis.beat(
            WorkerId("alpha", 0), Heartbeat(applied_steps=steps, phase="comm_wait")
        )
        books.tracker.diagnosis.beat(
            WorkerId("beta", 0), Heartbeat(applied_steps=steps, phase="data_wait")
        )
        books.tracker.diagnosis.look_for_stall(is_training=True)
        assert (books.tracker.diagnosis.tell()[0].kind == "stall") == (10 <= second < 14)
    said = books.close()
    assert said.count("nobody has stepped for 10 s: waiting for beta:0 in data wait") == 1
    assert said.count("step 2: training goes on after 14 s without a step") == 1
