"""Which exit code a job has: whether its input is wrong, or the same may succeed another time."""

import asyncio
import errno
import socket
from types import SimpleNamespace

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train import run as run_command
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.errors import (
    ConfigError,
    DiscoveryError,
    InfeasiblePlanError,
    JobError,
    TryAgainError,
    UserError,
    job_error,
)
from hetero_hvd.exit_codes import EXIT_NOT_KEPT, EXIT_TRY_AGAIN, EXIT_USER_ERROR
from hetero_hvd.messages import (
    CheckpointFailed,
    CheckpointWritten,
    Crashed,
    Leaving,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.run_folder import run_folder
from hetero_hvd.run.tracking.run_tracker import MAX_RESETS_WITHOUT_STEP
from hetero_hvd.run.tracking.summary import Summary
from tests.driver.test_controller import a_team, one_slot

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)
TOO_LARGE = InfeasiblePlanError(global_batch_size=8, capacity=4, nodes=["alpha"])

REFUSED = {
    "a port that another process has": (OSError(errno.EADDRINUSE, "taken"), True),
    "a network that is down": (OSError(errno.ENETUNREACH, "unreachable"), True),
    "no free descriptor": (OSError(errno.EMFILE, "too many"), True),
    "a full disk": (OSError(errno.ENOSPC, "full"), True),
    "a name server without an answer": (socket.gaierror(socket.EAI_AGAIN, "again"), True),
    "an answer that takes too long": (TimeoutError("slow"), True),
    "a store that fails": (OSError("InternalError: 500"), True),
    "an address of another machine": (OSError(errno.EADDRNOTAVAIL, "not ours"), False),
    "a name that there is not": (socket.gaierror(socket.EAI_NONAME, "unknown"), False),
    "a folder that nobody may write": (OSError(errno.EACCES, "denied"), False),
    "a volume that is read-only": (OSError(errno.EROFS, "read-only"), False),
    "a bucket that there is not": (FileNotFoundError("NoSuchBucket: x"), False),
    "credentials that are refused": (PermissionError("403"), False),
}
"""What the system or a store says, and whether it may pass."""


@pytest.mark.parametrize(("cause", "may_pass"), REFUSED.values(), ids=REFUSED)
def test_what_the_system_refuses_may_pass_unless_somebody_must_change_it(cause, may_pass):
    """A wrong name stays wrong, a full disk does not stay full."""
    error = job_error("x", cause)
    assert isinstance(error, JobError)
    assert error.may_pass is may_pass


KINDS = {
    UserError: EXIT_USER_ERROR,
    JobError: EXIT_USER_ERROR,
    ConfigError: EXIT_USER_ERROR,
    TryAgainError: EXIT_TRY_AGAIN,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_ends_with_the_code_of_its_error(monkeypatch, capsys, kind):
    """In one line, whichever it is."""

    def fail(_):
        raise kind(["x"]) if kind is ConfigError else kind("x")

    monkeypatch.setattr(run_command, "act", fail)
    assert main(["run", "--", "train.py"]) == KINDS[kind]
    assert capsys.readouterr().err == "hetero-hvd: x\n"


def test_no_other_error_of_ours_says_that_it_may_pass():
    """Those that are no `UserError` are translated by who catches them."""
    assert not hasattr(DiscoveryError("x"), "may_pass")
    found = [UserError]
    for kind in found:
        found.extend(kind.__subclasses__())
    assert {kind.__name__ for kind in found if kind.may_pass} == {"TryAgainError", "_HeldError"}


def crash(team, slot, *, may_pass):
    """The only worker's script ends in an error of ours."""
    told = Crashed(worker=ALPHA, error="x", traceback="", user_error=True, may_pass=may_pass)
    slot.heard(told)
    team._handle(slot, told)


def crash_for_good(team, slot):
    """As that, of wrong input."""
    crash(team, slot, may_pass=False)


def crash_for_now(team, slot):
    """As that, of what another try may find mended."""
    crash(team, slot, may_pass=True)


def never_step(team, _):
    """Resets follow each other."""
    team.tracker.resets_without_step = MAX_RESETS_WITHOUT_STEP
    try:
        team.check(slept_too_long_seconds=0.0)
    except UserError as error:
        team.ended.set_exception(error)


def cannot_hold(team, slot):
    """The plan of the first membership is impossible."""
    team.tracker.workers = (ALPHA,)
    team._handle = lambda *_: (_ for _ in ()).throw(TOO_LARGE)
    team.received(slot.host, Leaving(applied_steps=1))


def cannot_hold_yet(team, slot):
    """As that, and a slot has not come yet."""
    one_slot(team, team._output, name="beta")
    cannot_hold(team, slot)


def cannot_hold_any_more(team, slot):
    """As that, after a worker was lost."""
    team.tracker.summary.workers[BETA].exit_codes.append(137)
    cannot_hold(team, slot)


def stand_still(team, _):
    """The members wait for each other."""
    team._standstill = SimpleNamespace(found=lambda *_: "a while b")
    team.check(slept_too_long_seconds=0.0)


ENDINGS = {
    "wrong input of the script": (crash_for_good, False, EXIT_USER_ERROR),
    "a store that does not answer": (crash_for_now, False, EXIT_TRY_AGAIN),
    "resets without a step": (never_step, False, EXIT_TRY_AGAIN),
    "members that wait in different operations": (stand_still, False, EXIT_USER_ERROR),
    "a batch that all together cannot hold": (cannot_hold, False, EXIT_USER_ERROR),
    "a batch that agents may come for": (cannot_hold, True, EXIT_TRY_AGAIN),
    "a batch that needs a node which starts": (cannot_hold_yet, False, EXIT_TRY_AGAIN),
    "a batch that needed the lost one": (cannot_hold_any_more, False, EXIT_TRY_AGAIN),
}


@pytest.mark.parametrize(("happen", "discover", "code"), ENDINGS.values(), ids=ENDINGS)
def test_the_driver_tells_wrong_input_from_what_may_pass(tmp_path, happen, discover, code):
    """By an ending, or by an error whose code is as `run` would end with it."""

    async def scenario():
        team, console = a_team(tmp_path, discover=discover)
        team._output = tmp_path
        slot = one_slot(team, tmp_path, process=SimpleNamespace(terminate=lambda: None))
        happen(team, slot)
        error = team.ended.exception()
        found = team.ended.result().exit_code if error is None else None
        if error is not None:
            found = EXIT_TRY_AGAIN if error.may_pass else EXIT_USER_ERROR
        assert found == code
        for one in list(team.slots._tasks):
            del team.slots._tasks[one]
            one.output.close()
        await team.close()
        console.close()

    asyncio.run(scenario())


def test_a_batch_that_does_not_fit_is_told_in_one_line(tmp_path):
    """It names the setting and its nodes; the members end with the same error, unshown."""

    async def scenario():
        team, console = a_team(tmp_path, discover=False)
        process = SimpleNamespace(terminate=lambda: None)
        slots = [one_slot(team, tmp_path, w.node, process=process) for w in (ALPHA, BETA)]
        event = WorkersJoined(
            rendezvous_id=1,
            workers=(ALPHA, BETA),
            applied_steps=0,
            global_batch_size=240,
            capacities=(60, 60),
            prefetch_steps=0,
        )
        team.received(slots[0].host, event)
        for slot in slots:
            slot.output.feed(b"Traceback (most recent call last):\n")
            slot.output.close()
        ending = team.ended.result()
        assert ending.exit_code == EXIT_USER_ERROR
        assert ending.reason == (
            "global_batch_size=240 does not fit: by max_local_batch_size of alpha, beta the "
            "workers hold at most 120 samples per step; raise that, lower the batch, or add a node"
        )
        team.slots._tasks.clear()
        await team.close()
        console.close()
        assert console._stream.getvalue() == ""

    asyncio.run(scenario())


def failed(step, trainer=1):
    """A checkpoint could not be written."""
    return CheckpointFailed(step=step, path="/c", error=f"/c/{step}: full", trainer=trainer)


def written(step, trainer=1):
    """One was."""
    found = {"path": "/c", "num_bytes": 1, "metrics": {}, "is_best": False}
    return CheckpointWritten(step=step, trainer=trainer, **found)


MISSING = "its last checkpoint, of step {0}, is missing: /c/{0}: full"
KEPT = {
    "all are there": ([written(2), written(4)], 0, 0, []),
    "an earlier one is missing": ([failed(2), failed(3), written(4)], 0, 0, []),
    "the last one is missing": ([written(2), failed(4)], 0, EXIT_NOT_KEPT, [4]),
    "all are missing": ([failed(2), failed(4)], 0, EXIT_NOT_KEPT, [4]),
    "that step is there already": ([written(4), failed(4)], 0, 0, []),
    "another worker has written the last": ([failed(4), written(4)], 0, 0, []),
    "a worker that was left behind": ([written(4), failed(3)], 0, 0, []),
    "another trainer has its own": ([failed(4), written(9, 2)], 0, EXIT_NOT_KEPT, [4]),
    "of two trainers": ([failed(4), failed(9, 2)], 0, EXIT_NOT_KEPT, [4, 9]),
    "a job that was stopped": ([failed(4)], 130, 130, [4]),
    "a job that was stopped in order": ([written(4)], 130, 130, []),
}
"""What is told of checkpoints, the code of the job before, after, and whose loss is said."""


@pytest.mark.parametrize(("events", "before", "code", "lost"), KEPT.values(), ids=KEPT)
def test_a_job_whose_last_checkpoint_is_missing_does_not_end_with_0(events, before, code, lost):
    """And says which; earlier ones do not count once there is a newer one."""
    summary = Summary(baseline_steps=0)
    for event in events:
        summary.observe(0.0, event)
    found = JobResult(before, "over", is_orderly=True).without(summary.not_kept)
    assert found.exit_code == code
    assert found.reason == "; ".join(["over", *(MISSING.format(step) for step in lost)])
    assert found.is_orderly


def test_a_folder_that_a_driver_still_has_may_be_free_later(tmp_path):
    """As that of a pod that is going: the next one may be early. Another run's is not."""
    with (
        run_folder(str(tmp_path / "out"), None) as held,
        pytest.raises(TryAgainError, match="another job runs in it"),
        run_folder(str(held.path), None),
    ):
        pass
    (tmp_path / "out" / "checkpoints" / "step-1").mkdir(parents=True)
    with (
        pytest.raises(JobError, match="there is a run in it") as caught,
        run_folder(str(tmp_path / "out"), None),
    ):
        pass
    assert not caught.value.may_pass


@pytest.fixture
def taken():
    """A port of the loopback that this process has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.process
def test_a_page_whose_port_is_taken_ends_the_job_for_now(tmp_path, monkeypatch, taken, capsys):
    """The real command; its summary has the same code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: alpha, slots: 1, devices: []}]\n")
    (tmp_path / "train.py").touch()
    words = ["run", "--http-port", str(taken), "--output", "out", "--", "train.py"]
    assert main(words) == EXIT_TRY_AGAIN
    assert f"cannot listen on 127.0.0.1 port {taken}" in capsys.readouterr().err
    assert f'"exit_code": {EXIT_TRY_AGAIN}' in (tmp_path / "out" / "summary.json").read_text()
