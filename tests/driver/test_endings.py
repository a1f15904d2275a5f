"""Every way in which a script may end, on one worker and on all: real workers, real Horovod."""

import json
import re
from pathlib import Path

import pytest

from hetero_hvd.exit_codes import EXIT_NOT_KEPT

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("endings.py")
SAMPLES, STEP, LAST = 16, 6, 12
NEVER = "silent|is killed|all members are lost|paused|InternalError|terminate called"


def run(start_job, endings, *arguments, names=("alpha", "beta"), **settings):
    """Let each worker's script end in its way; gives the job, its exit code and what it said."""
    words = {f"{name}:0": ending for name, ending in endings.items()}
    job = start_job(
        *arguments,
        names=names,
        command=(str(SCRIPT), json.dumps(words)),
        **{"max_restarts": 0, "checkpoint_seconds": 60, "balance": False, **settings},
    )
    code = job.wait(60)
    return job, code, "\n".join(job.output)


def results(job):
    """What the workers that came to the end of their loop have proved, by worker."""
    files = job.folder.glob("result-*.json")
    return {file.stem.removeprefix("result-"): json.loads(file.read_text()) for file in files}


def kept_steps(job):
    """Of the checkpoints."""
    folders = (job.folder / "out" / "checkpoints").glob("step-*")
    return sorted(int(folder.name.split("-")[1]) for folder in folders)


STOPPING = [
    {"alpha": ["break", ""], "beta": ["return", ""], "gamma": ["exit 0", "step"]},
    {"alpha": ["keep", ""], "beta": ["hook", ""], "gamma": ["thread", ""]},
]


@pytest.mark.parametrize(
    "endings",
    [
        pytest.param(STOPPING[0], id="statements"),
        pytest.param(STOPPING[1], marks=pytest.mark.matrix, id="lingering"),
    ],
)
def test_early_stopping_is_a_normal_end(start_job, endings):
    """All leave after the same step, by whatever statement: exit code 0, a checkpoint, no alarm.

    Nobody is hurried or killed: neither an exit hook of 6 s nor a thread that outlives the script.
    """
    job, code, said = run(start_job, endings, names=tuple(endings))
    assert code == 0, said
    assert not re.search(NEVER, said), said
    summary = job.summary()
    assert summary["reason"] == f"the script has ended on all workers after {STEP} steps"
    assert (summary["steps"], summary["replicas_equal"]) == (STEP, True)
    assert kept_steps(job) == [STEP]
    assert all(worker["exit_codes"] == [0] for worker in summary["workers"].values())
    lingering = {name for name, (kind, _) in endings.items() if kind in {"hook", "thread"}}
    assert {file.name for file in job.folder.glob("lingered-*")} == {
        f"lingered-{name}-0" for name in lingering
    }


def test_workers_that_end_alone_end_nothing_else(start_job):
    """Whatever their exit codes, the others go on and take every step once.

    One whose process is gone without a word was lost: a launcher may report 0 for a failed node.
    """
    endings = {"alpha": ["break", ""], "beta": ["_exit 0", ""], "gamma": ["signal SIGKILL", ""]}
    job, code, said = run(start_job, endings, names=(*endings, "delta"))
    assert code == 0, said
    assert not re.search(NEVER, said), said
    early = "has ended after 6 steps, before its loop over the epochs was through"
    assert f"the script of alpha:0 {early}" in said
    assert "beta:0 exited with code 0" in said
    assert "its script has not ended: it counts as lost" in said
    assert results(job)["delta-0"] == [LAST, LAST // 4, LAST // 4]
    assert job.summary()["steps"] == LAST
    assert job.summary()["reason"] == "the training is finished"


ERRORS = [
    ("_exit 0", "step", 1, "0 workers are left"),
    ("exit 3", "epoch", 3, ":0: the script has ended with exit code 3"),
    ("raise", "evaluation", 1, "ArithmeticError: the script is wrong"),
    ("exit 3", "import", 3, ":0 exited with code 3: it has printed nothing"),
    pytest.param("_exit 3", "begin", 3, "0 workers are left", marks=pytest.mark.matrix),
    ("signal SIGTERM", "step", 143, "0 workers are left"),
]


@pytest.mark.parametrize(("kind", "place", "code", "reason"), ERRORS)
def test_a_job_with_work_left_never_ends_with_0(start_job, kind, place, code, reason):
    """An exit code of the script's own choice counts as an exception does: no retry, no alarm."""
    job, found, said = run(start_job, {name: [kind, place] for name in ("alpha", "beta")})
    assert found == code, said
    assert reason in job.summary()["reason"]
    # Workers that are asked to leave go one after the other: the last may be alone for a while,
    # and the job waits for others while it has said that it leaves and its process still ends.
    never = NEVER
    if "SIGTERM" in kind:
        never = never.replace("all members are lost|", "").replace("paused|", "")
    assert not re.search(never, said), said
    assert "restart 1" not in said
    assert said.count("Traceback") == (kind == "raise")
    assert not results(job)


def test_an_operation_that_only_some_workers_call_ends_the_job_in_one_line(start_job):
    """As in `if trainer.is_leader: trainer.evaluate(...)`: all would wait for ever."""
    job, code, said = run(start_job, {"beta": ["skip", ""]})
    assert code == 2, said
    assert re.search(
        r"alpha:0 waits in trainer.evaluate\(\) \(endings.py:\d+\) while "
        r"beta:0 waits in trainer.step\(\) \(endings.py:\d+\): every worker must call the same",
        job.summary()["reason"],
    )


def test_a_scheduler_that_the_script_advances_as_well_ends_the_job_in_one_line(start_job):
    """It would be advanced twice as far as the script says."""
    job, code, said = run(start_job, {"alpha": ("scheduler", "")}, names=("alpha",))
    assert code == 2, said
    assert re.search(
        r":0: the script has called the scheduler's step\(\): the trainer, which was given the "
        r"scheduler, does so after each epoch; remove one of them \(endings.py:\d+\)",
        job.summary()["reason"],
    )
    assert "Traceback" not in said


def test_an_exit_code_after_another_worker_has_finished_is_the_jobs(start_job):
    """The training is finished, and what followed it on one worker went wrong."""
    job, code, said = run(start_job, {"alpha": ["finish", ""], "beta": ["late exit 5", "after"]})
    assert code == 5, said
    assert not re.search(NEVER, said), said
    reason = "the training is finished; after that beta:0 exited with code 5"
    assert job.summary()["reason"] == reason
    assert set(results(job)) == {"alpha-0", "beta-0"}


KEEPS = {
    "all epochs": (["finish", ""], LAST),
    "early": (["break", ""], STEP),
    "early, and the process lives on": (["thread", ""], STEP),
}


@pytest.mark.matrix
@pytest.mark.parametrize(("ending", "step"), KEEPS.values(), ids=KEEPS)
def test_a_last_state_that_is_not_kept_is_no_end_with_0(start_job, tmp_path, ending, step):
    """Whether the worker tells of it before its last word or after it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoints").write_text("in the way")
    job, code, said = run(start_job, {"alpha": ending}, names=("alpha",))
    assert code == EXIT_NOT_KEPT, said
    assert len(re.findall(r"the checkpoint of step \d+ cannot be written: ", said)) == 1
    missing = rf"its last checkpoint, of step {step}, is missing: .*/out/checkpoints/.*: Not a dir"
    assert re.search(missing, job.summary()["reason"])
    assert "Traceback" not in said
