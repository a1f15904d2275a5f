"""Scripts that know Horovod or torch.distributed, and nothing of hetero_hvd: real jobs of them."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from hetero_hvd.messages import Judged, Recovered, WorkersJoined, WorkerStarted
from hetero_hvd.run.records.reader import read_record
from tests.driver.conftest import write_nodes

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).with_name("plain_horovod.py")
SAMPLES, BATCH = 240, 4
ALARM = "is killed|all members are lost|InternalError|Traceback|terminate called"


def start(start_job, endings, *, names=("alpha", "beta"), settings=None, **words):
    """A job of the script; each worker ends it in its way."""
    asked = {"epochs": 2, "commit": 1, "seconds": {}, **words}
    asked |= {f"{name}:0": ending for name, ending in endings.items()}
    settings = {"max_restarts": 0, **(settings or {})}
    return start_job(names=names, command=(str(SCRIPT), json.dumps(asked)), **settings)


def results(job):
    """What the workers that came to the end have proved, by node: each has the same values."""
    files = job.folder.glob("result-*.json")
    found = {file.stem.split("-")[1]: json.loads(file.read_text()) for file in files}
    assert len({str(result["values"]) for result in found.values()}) <= 1
    return found


def events(job, kind):
    """Of the run's record."""
    return [event for _, event in read_record(job.folder / "out").events if isinstance(event, kind)]


def check_counts(result, *, epochs, num_divisions):
    """Each sample once an epoch; a sampler that cannot divide what is left repeats some of it."""
    counts = result["values"][:SAMPLES]
    assert min(counts) == epochs
    assert sum(counts) - epochs * SAMPLES <= 2 * num_divisions


ENDINGS = {
    "normal": ({}, 1, 0, "the training is finished"),
    "not elastic": ({}, 0, 0, "the script has ended on all workers after 60 steps"),
    "exit code on all": (
        {"alpha": ("exit 3", 9), "beta": ("exit 3", 9)},
        1,
        3,
        ":0: the script has ended with exit code 3",
    ),
    "an error on all": (
        {"alpha": ("raise", 9), "beta": ("raise", 9)},
        1,
        1,
        "ArithmeticError: the script is wrong",
    ),
    "disagreement": (
        {"alpha": ("reduce 3", 9), "beta": ("reduce 4", 9)},
        1,
        2,
        "the workers do not agree on what to reduce",
    ),
    "a reduction on one": (
        {"alpha": ("reduce 3", 9)},
        1,
        2,
        r"alpha:0 waits in hvd.allreduce\(\) \(plain_horovod.py:\d+\) while beta:0 waits in",
    ),
    "not elastic, and one is lost": (
        {"alpha": ("signal SIGKILL", 9)},
        0,
        1,
        "outside of hvd.elastic.run the script has no state to go back to",
    ),
}


SLOW = {"exit code on all", "an error on all", "a reduction on one"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.matrix] * (n in SLOW)) for n in ENDINGS]
)
def test_every_ending(start_job, name):
    """The exit code and the reason; one line about what went wrong, and nothing is tried again."""
    endings, commit, code, reason = ENDINGS[name]
    job = start(start_job, endings, commit=commit)
    found, said = job.wait(60), "\n".join(job.output)
    assert found == code, said
    assert re.search(reason, job.summary()["reason"]), said
    assert all((job.folder / f"mark-{node}-0").exists() for node in endings)
    assert not re.search(r"restart \d+ in", said)
    events = [event for _, event in read_record(job.folder / "out").events]
    assert sum(isinstance(event, WorkerStarted) for event in events) == 2
    assert said.count("Traceback") == (name == "an error on all")
    if not code:
        assert not re.search(ALARM, said), said
        assert set(results(job)) == {"alpha", "beta"}
        check_counts(results(job)["beta"], epochs=2, num_divisions=0)
        assert job.summary()["steps"] == 60


LOSSES = {
    "the first is killed": ("alpha", "signal SIGKILL", 24, "alpha:0 was ended by SIGKILL"),
    "one is stopped": ("beta", "signal SIGSTOP", 24, "beta:0 has been silent for .* and is killed"),
    "one is to go": ("beta", "signal SIGTERM", 28, "beta:0 was ended by SIGTERM"),
    "an error": ("gamma", "raise", 24, "gamma:0: ArithmeticError.*only this worker has raised it"),
    "an early end": ("gamma", "exit 0", 24, "the script of gamma:0 has ended after 25 steps"),
}
"""Who, how, the commit that the others go on from, and what is said. Who is to go does so there."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "one is stopped" else [pytest.mark.matrix])
        for name in LOSSES
    ],
)
def test_a_lost_worker_costs_what_lies_behind_the_last_commit(start_job, name):
    """The others go back to it in their processes, and take every step once."""
    node, kind, commit, line = LOSSES[name]
    names = ("alpha", "beta", "gamma")
    settings = {"heartbeat_timeout_seconds": 5}
    job = start(start_job, {node: (kind, 25)}, names=names, settings=settings, epochs=4, commit=4)
    code, said = job.wait(90), "\n".join(job.output)
    assert code == 0, said
    assert re.search(line, said), said
    found = results(job)
    assert set(found) == set(names) - {node}
    for result in found.values():
        check_counts(result, epochs=4, num_divisions=1)
        assert set(result["sizes"][:commit]) == {3}
        assert set(result["sizes"][commit:]) == {2}
    assert {event.cause for event in events(job, Recovered)} == {"fault"}
    assert [event.applied_steps for event in events(job, WorkersJoined)] == [0, commit]


def test_who_was_killed_comes_back_and_a_slow_one_is_named(start_job):
    """It gets the state by Horovod's own `sync`; all is in the run's record, page and metrics."""
    job = start(
        start_job,
        {"alpha": ("signal SIGKILL", 20)},
        settings={"max_restarts": 2, "progress_seconds": 1},
        until_size=2,
        seconds={"beta:0": 0.08},
    )
    url = job.wait_for(r"1 workers train together") and job._url.removesuffix("status")
    job.wait_for(r"2 workers train together: beta:0, alpha:0")
    with urllib.request.urlopen(url + "metrics", timeout=5) as answer:  # noqa: S310 - our own
        metrics = answer.read().decode()
    assert "hetero_hvd_" in metrics
    code, said = job.wait(90), "\n".join(job.output)
    assert code == 0, said
    found = results(job)
    assert found["alpha"]["batches"] == found["beta"]["batches"]
    check_counts(found["beta"], epochs=found["beta"]["epochs"], num_divisions=2)
    causes = [event.cause for event in events(job, Recovered)]
    assert causes == ["fault", "membership"]
    rows = read_record(job.folder / "out").rollups
    phases = ("data_wait", "forward", "backward", "comm_wait", "optimizer")
    for worker in ("alpha:0", "beta:0"):
        own = [row for row in rows if row["worker"] == worker and row["num_steps"]]
        batches = [row["samples"] / row["num_steps"] for row in own]
        assert 0.75 * BATCH < min(batches) <= max(batches) <= BATCH  # an epoch's last is smaller
        assert all(sum(row[f"{phase}_seconds"] for row in own) > 0 for phase in phases)
    (verdict, *_) = [e.findings for e in reversed(events(job, Judged))]
    (balance,) = [finding for finding in verdict if finding.kind == "imbalance"]
    assert balance.words.startswith("imbalance left: the others wait for beta:0"), verdict
    assert balance.next_step


def test_nodes_come_and_go_and_nothing_is_lost(start_job):
    """A new node and the drain of another one take effect at a commit: no step is taken again."""
    job = start(start_job, {}, until_size=3, epochs=1, settings={"max_restarts": 1})
    job.wait_for("2 workers train together")
    write_nodes(job.nodes_file, ("beta", "gamma"), max_restarts=1)
    job.wait_for("2 workers train together: beta:0, gamma:0")
    write_nodes(job.nodes_file, ("beta", "gamma", "delta"), max_restarts=1)
    code, said = job.wait(90), "\n".join(job.output)
    assert code == 0, said
    assert not re.search(ALARM, said), said
    found = results(job)
    assert set(found) == {"beta", "gamma", "delta"}
    check_counts(found["beta"], epochs=found["beta"]["epochs"], num_divisions=3)
    assert {event.cause for event in events(job, Recovered)} == {"membership"}
    steps = [event.applied_steps for event in events(job, WorkersJoined)]
    assert steps == sorted(steps)


OF_TORCHRUN = {
    "address": (
        "torch.distributed.init_process_group('gloo')",
        "calls torch.distributed.init_process_group()",
    ),
    "variables": (
        "import os; torch.device('cuda', int(os.environ['LOCAL_RANK']))",
        "looks for LOCAL_RANK, which torchrun sets",
    ),
    "accelerate": (
        "import accelerate; accelerate.Accelerator()",
        "makes an accelerate.Accelerator",
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.matrix] * (n != "accelerate")) for n in OF_TORCHRUN],
)
def test_a_script_for_torchrun_says_in_one_line_what_to_change(start_job, tmp_path, name):
    """No copies that train alone, no traceback of torch's, nothing is tried again."""
    if name == "accelerate":
        pytest.importorskip("accelerate")
    call, what = OF_TORCHRUN[name]
    (tmp_path / "script.py").write_text(f"import torch\n{call}\nprint('trains')\n")
    job = start_job(names=("alpha",), command=("script.py",))
    code, said = job.wait(), "\n".join(job.output)
    assert code == 2, said
    assert f"script.py {what}: started by hetero-hvd each worker" in job.summary()["reason"]
    assert "(docs/guide/migrate.md), or start the script with" in job.summary()["reason"]
    assert not re.search("Traceback|trains$|restart", said, re.MULTILINE), said


READS = """
import os, pathlib
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
(pathlib.Path(os.environ["HETERO_HVD_WORKER"])).write_text(" ".join(os.environ[n] for n in names))
"""
GROUP = """
import torch
torch.distributed.init_process_group('gloo')
"""
PARTIAL_STATE = """
import accelerate
accelerate.PartialState()
"""
STARTS = {
    "torch.distributed": (GROUP, "calls torch.distributed.init_process_group()"),
    "accelerate": (PARTIAL_STATE, "calls torch.distributed.init_process_group()"),
}


def test_a_script_that_only_reads_torchruns_variables_finds_them_on_request(start_job, tmp_path):
    """The values at the start, on every worker."""
    (tmp_path / "script.py").write_text(f"{READS}\nimport horovod.torch as hvd\nhvd.init()\n")
    job = start_job(names=("alpha", "beta"), command=("script.py",), torchrun_variables=True)
    assert job.wait() == 0
    assert (tmp_path / "alpha:0").read_text() == "0 2 0 1 127.0.0.1"
    assert (tmp_path / "beta:0").read_text() == "1 2 0 1 127.0.0.1"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.matrix] * (n != "accelerate")) for n in STARTS]
)
def test_who_starts_torch_distributed_by_these_variables_is_refused(start_job, tmp_path, name):
    """Nobody would ever come to MASTER_ADDR."""
    pytest.importorskip("accelerate")
    script, what = STARTS[name]
    (tmp_path / "script.py").write_text(script)
    job = start_job(names=("alpha",), command=("script.py",), torchrun_variables=True)
    assert job.wait() == 2
    reason = job.summary()["reason"]
    assert what in reason
    assert "if a package does it by itself, leave torchrun_variables off" in reason


WRONG = {
    "staleness": ("hvd.init()", {"staleness_bound": 1}, "staleness_bound: 1: not for a script"),
    "best": ("hvd.init()", {"checkpoint_best": "loss"}, "checkpoint_best: not for a script"),
    "mode": ("hvd.init()", {"mode": "reproducible"}, "mode: reproducible: not for a script"),
    "join": ("hvd.init(); hvd.join()", {}, "hvd.join() is not possible under hetero-hvd run"),
    "start again": (
        "hvd.init(); hvd.init(); hvd.shutdown(); hvd.init()",
        {},
        "hvd.init() after hvd.shutdown() is not possible under hetero-hvd run",
    ),
    "arguments": ("hvd.init(comm=[0])", {}, "script.py gives hvd.init() arguments"),
    "trainer": (
        "from hetero_hvd import Trainer; hvd.init()",
        {},
        "script.py calls hvd.init(), and so does hetero_hvd.Trainer",
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "start again" else [pytest.mark.matrix]) for n in WRONG],
)
def test_what_cannot_be_done_for_such_a_script_is_one_line(start_job, tmp_path, name):
    """Exit code 2: what, and what to do."""
    calls, settings, line = WRONG[name]
    (tmp_path / "script.py").write_text(f"import horovod.torch as hvd\n{calls}\n")
    job = start_job(names=("alpha",), command=("script.py",), **settings)
    code, said = job.wait(), "\n".join(job.output)
    assert code == 2, said
    assert line in job.summary()["reason"], said
    assert "Traceback" not in said
