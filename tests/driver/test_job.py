"""Whole jobs: the command line, real worker processes, real Horovod."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.reports.catalogue import recorded_runs
from tests.kit.checkout import CHECKOUT

from .conftest import SCRIPT, processes_of, write_nodes

pytestmark = pytest.mark.process


def test_three_workers_train_to_the_end(start_job):
    """All workers finish with equal replicas, the exit code is 0, and the summary says so.

    One of them has all of torch, as outside of the tests (see tests/without_compiler).
    """
    labels = ("--name", "first", "--tag", "lr=0.1", "--tag", "note=a b")
    names = ("alpha", "beta", f"gamma, env: {{PYTHONPATH: {CHECKOUT}}}")
    job = start_job("--progress-seconds", "0.1", *labels, names=names)
    job.wait_for(r"step 0: 3 workers train together: alpha:0, beta:0, gamma:0")
    job.wait_for(
        r"step \d+  epoch \d+  loss \S+  \d+ samples/s  \([\d.]+ of ideal\)  alpha:0 \d+ in "
    )
    assert job.wait() == 0
    summary = job.summary()
    assert summary["steps"] == 40
    assert summary["replicas_equal"] is True
    assert summary["exit_code"] == 0
    assert {name: w["exit_codes"] for name, w in summary["workers"].items()} == {
        "alpha:0": [0],
        "beta:0": [0],
        "gamma:0": [0],
    }
    for name in ("alpha", "beta", "gamma"):
        log = (job.folder / "out" / "logs" / f"{name}-0.log").read_text()
        assert "the script is done" in log
        assert f"[{name}:0] the script is done" in job.output
    (run,) = recorded_runs(job.folder)
    assert (run.facts.name, run.facts.tags) == ("first", {"lr": "0.1", "note": "a b"})
    started = next(e for _, e in read_record(run.folder).events if isinstance(e, RunStarted))
    assert started.origin["script_sha256"] == hashlib.sha256(SCRIPT.read_bytes()).hexdigest()


def test_a_worker_killed_before_the_first_step_comes_back(start_job):
    """In the middle of the first meeting nobody has any state yet.

    SIGINT to the driver ends every worker, and the exit code is 130.
    """
    job = start_job(script=("1000",))
    job.wait_for("3 workers train together")
    assert job.status()["workers"].keys() == {"alpha:0", "beta:0", "gamma:0"}
    os.kill(job.pid_of("beta:0"), signal.SIGKILL)
    job.wait_for("2 workers train together: alpha:0, gamma:0")
    job.wait_for("3 workers train together: alpha:0, gamma:0, beta:0")
    assert len(processes_of(job.folder)) >= 7  # the driver, three supervisors, three workers
    job.process.send_signal(signal.SIGINT)
    assert job.wait(10) == 130
    assert processes_of(job.folder) == []


def test_nodes_yaml_is_followed(start_job):
    """A node that is added joins, one that is removed leaves, a broken edit changes nothing.

    On SIGTERM all finish their step; what was trained is kept.
    """
    job = start_job(names=("alpha", "beta"), script=("1000",))
    job.wait_for("2 workers train together: alpha:0, beta:0")
    job.nodes_file.write_text("nodes: [{nome: gamma}]\n")
    job.wait_for(r"unknown key.*goes on with the earlier version")
    write_nodes(job.nodes_file, ("alpha", "beta", "gamma"))
    job.wait_for("3 workers train together: alpha:0, beta:0, gamma:0")
    write_nodes(job.nodes_file, ("beta", "gamma"))
    job.wait_for("alpha:0 is no longer in nodes.yaml and leaves")
    job.wait_for("2 workers train together: beta:0, gamma:0")
    job.wait_for("alpha:0 has left")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert job.summary()["workers"]["alpha:0"]["exit_codes"] == [0]
    kept = (job.folder / "out" / "checkpoints").glob("step-*")
    assert max(int(folder.name.split("-")[1]) for folder in kept) == job.summary()["steps"]


def test_a_second_ctrl_c_kills(start_job):
    """Workers that ignore SIGTERM are killed at once when the user insists."""
    job = start_job(command=("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"))
    for _ in range(3):
        job.wait_for("deaf")
    job.process.send_signal(signal.SIGINT)
    job.wait_for("once more kills them")
    job.process.send_signal(signal.SIGINT)
    assert job.wait(4) == 130


def test_an_import_error_is_reported_and_ends_the_job(start_job):
    """If no worker gets as far as being ready, the job ends at once with the workers' exit code."""
    job = start_job(names=("alpha",), script=("1", "fail-before"))
    assert job.wait() == 1
    assert "no worker became ready" in job.output[-1]
    assert "exited with code 1: ImportError: no such library" in job.output[-1]


def test_a_script_without_a_trainer_fails(start_job):
    """Copies that ran side by side without knowing of each other are no training."""
    job = start_job(command=("true",))
    assert job.wait() == 2
    assert "without a loop over the epochs() of a hetero_hvd.Trainer" in job.output[-1]


def test_wrong_input_is_one_line(start_job):
    """A UserError of the script needs no traceback and has exit code 2."""
    job = start_job(names=("alpha", "beta"), script=("5", "bad-input"))
    assert job.wait() == 2
    assert "Traceback" not in "\n".join(job.output)
    assert "the dataset is empty" in job.summary()["reason"]


WRONG_OPTION = """
import torch, hetero_hvd
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(8, 2)), 4)
hetero_hvd.Trainer(model, optimizer, loader, micro_batch_size=0)
"""


def test_wrong_input_before_training_is_one_line(start_job, tmp_path):
    """The script's line is in it; nothing is tried again."""
    (tmp_path / "script.py").write_text(WRONG_OPTION)
    job = start_job(names=("alpha",), command=("script.py",))
    assert job.wait() == 2
    said = "\n".join(job.output)
    reason = 'micro_batch_size=0: must be a whole number >= 1 or "auto" (script.py:8)'
    assert job.summary()["reason"].endswith(reason)
    assert "Traceback" not in said
    assert "restart" not in said


def test_an_interface_that_is_not_there_ends_the_job_in_one_line(start_job):
    """Horovod would look for it for ever."""
    job = start_job(names=("beta, interface: eth77",))
    assert job.wait(30) == 2
    assert (
        "interface: eth77: node beta has no network interface of that name; it has"
        in (job.summary()["reason"])
    )


def test_an_interface_that_is_not_there_costs_a_joiner_its_slot(start_job):
    """It is told in one line, and not tried again; who trains already does not notice."""
    job = start_job("--progress-seconds", "0.2", names=("alpha",), script=("1000", "until-told"))
    job.wait_for(r"step [1-9]\d*  epoch")
    write_nodes(job.nodes_file, ("alpha", "beta, interface: eth77"))
    job.wait_for(
        r"beta:0 is refused \(interface: eth77: node beta has no network interface of that name; "
        r"it has .*\blo\b.*\) and leaves"
    )
    (job.folder / "end").touch()
    assert job.wait() == 0
    said = "\n".join(job.output)
    assert "Traceback" not in said
    assert "restart" not in said
    assert "2 workers train together" not in said
    assert job.summary()["memberships"] == 1


def test_a_signal_to_every_process_at_once_keeps_the_state(start_job):
    """As of a service manager that stops all of a job: driver, supervisors and workers get it.

    A worker gets it twice, from its supervisor too.
    """
    job = start_job(names=("alpha", "beta"), script=("1000",), checkpoint_seconds=600)
    job.wait_for(r"step [1-9]\d*  epoch")
    for pid in {job.process.pid, *processes_of(job.folder)}:
        os.kill(pid, signal.SIGTERM)
    assert job.wait(30) == 143
    kept = (job.folder / "out" / "checkpoints").glob("step-*")
    newest = max(kept, key=lambda folder: folder.name)
    assert int(newest.name.split("-")[1]) == job.summary()["steps"]
    way_on = "to go on from it add --resume out before the script"
    assert f"newest checkpoint: {newest}; {way_on}" in job.output


def test_too_few_workers_is_a_clear_error(start_job):
    """If fewer than min_np are ready and the others do nothing for the start timeout."""
    job = start_job(
        "--start-timeout-seconds", "1", names=("alpha", "beta"), command=("sleep", "100"), min_np=2
    )
    assert job.wait() == 75
    assert job.summary()["exit_code"] == 75
    assert any(
        "0 of 2 workers were ready after 1 s in which the others did nothing" in line
        for line in job.output
    )


def test_out_of_memory_between_layers_that_meet_the_others(start_job):
    """The others are in the middle of a forward pass with this worker: all take the step again."""
    script = Path(__file__).with_name("train_norm.py")
    job = start_job("--no-balance", command=(str(script), "beta:0", "5"))
    job.wait_for(r"step 5: beta:0 has no memory for 5 samples at once and goes on with 2")
    job.wait_for(r"beta:0 trains again after .* \(interrupted, nothing copied\)")
    assert job.wait() == 0
    assert job.summary()["steps"] == 12
    assert job.summary()["replicas_equal"] is True
