"""What the driver writes is what a worker reads."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificates

from hetero_hvd.config import ClusterConfig, EmulateConfig, JobConfig, NodeConfig
from hetero_hvd.core.numerics.cpu_capability import in_force
from hetero_hvd.driver.workers import worker_launch
from hetero_hvd.driver.workers.credentials import Credentials
from hetero_hvd.driver.workers.worker_launch import WorkerLauncher, torchrun_variables
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import (
    CheckpointSettings,
    EmulateSettings,
    JobSettings,
    NodeSettings,
    TraceSettings,
    WorkerIdentity,
    WorkerLaunch,
)
from hetero_hvd.run.records.earlier_run import EarlierRun
from hetero_hvd.worker.session.launch_settings import read_launch_settings

EMULATED = NodeConfig(
    name="alpha",
    interface="eth0",
    max_local_batch_size=64,
    memory_limit_bytes=2**30,
    emulate=EmulateConfig(seconds_per_sample=0.01, spike_probability=0.1),
    env={"HETERO_HVD_LAUNCH": "{}"},
)


IDENTITY = WorkerIdentity(
    worker=WorkerId("alpha", 1), host="alpha-1", driver=("10.0.0.1", 4000), run="one"
)


@pytest.fixture
def orders(monkeypatch):
    """What would be sent to supervisors."""
    sent = []

    async def start(_node, order, _output, *, job):
        sent.append((order, job))

    monkeypatch.setattr(worker_launch.WorkerProcess, "start", start)
    return sent


BEFORE = EarlierRun(folder=Path("/runs/before"), checkpoints="/runs/before/checkpoints")


def launched(orders, job, node=EMULATED, resume=None, limit=0):
    """The variables of a worker of this job, and what it makes of them."""

    async def towards(_):
        return SimpleNamespace(address="10.0.0.1", channel_port=4000)

    start = WorkerLauncher(
        ClusterConfig(job=job, nodes=(node,)),
        ("train.py",),
        Credentials(),
        SimpleNamespace(towards=towards),
        output=Path("/runs/one"),
        resume=resume,
        all_slots=lambda: [slot],
    )
    slot = SimpleNamespace(
        node=node,
        worker=WorkerId(node.name, 1),
        number=0,
        host="alpha-1",
        memory=SimpleNamespace(limit=limit),
        output=None,
    )
    asyncio.run(start(slot))
    variables = orders[-1][0].environment
    return variables, read_launch_settings(variables)


def test_everything_of_job_and_node_arrives(orders, monkeypatch):
    """The name once more in plain text for the script; the certificate is no part of it."""
    monkeypatch.setenv("HETERO_HVD_CHECK_STEPS", "7")
    followed = {"grain": 8, "staleness_bound": 2, "log_format": "json"}
    job = JobConfig(
        **followed,
        wait_free=True,
        checkpoint_best="-loss",
        trace_steps="100:110",
        trace_workers="alpha:0,alpha:1",
    )
    variables, settings = launched(orders, job, resume=BEFORE, limit=16)
    checkpoints = settings.launch.checkpoints
    assert settings.launch == WorkerLaunch(
        identity=IDENTITY,
        node=NodeSettings(
            emulate=EmulateSettings(seconds_per_sample=0.01, spike_probability=0.1),
            interface="eth0",
            max_local_batch_size=64,
            memory_limit_bytes=2**30,
        ),
        job=JobSettings(**followed, mode="wait_free"),
        checkpoints=CheckpointSettings(
            folder="/runs/one/checkpoints",
            run=checkpoints.run,
            job="one",
            best="-loss",
            resume="/runs/before/checkpoints",
        ),
        traces=TraceSettings(
            folder="/runs/one/traces", from_step=100, to_step=110, workers=("alpha:0", "alpha:1")
        ),
        fingerprints="/runs/one/fingerprints.jsonl",
        check_steps=7,
        max_micro_batch=16,
    )
    assert variables["HETERO_HVD_WORKER"] == "alpha:1"
    assert settings.tls == variables["HETERO_HVD_TLS"].encode()
    assert "PRIVATE KEY" not in variables["HETERO_HVD_LAUNCH"]
    (certificate, _) = load_pem_x509_certificates(settings.tls)
    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    assert names.get_values_for_type(DNSName) == ["alpha-1"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"cpu_capability": "avx512"}, None),
        ({"reproducible": True}, "avx2"),
        ({"mode": "reproducible", "cpu_capability": "avx512"}, "avx512"),
        ({"reproducible": True, "cpu_capability": "native"}, None),
    ],
)
def test_the_reproducible_mode_has_one_instruction_set(orders, settings, expected):
    """In the variables that torch's libraries read, and beside the checkpoints."""
    variables, found = launched(orders, JobConfig(**settings))
    assert variables.get("ATEN_CPU_CAPABILITY") == expected
    assert in_force(variables) == (expected or "")
    is_reproducible = found.launch.job.mode == "reproducible"
    kept = found.launch.checkpoints.cpu_capability
    assert kept == ((expected or "native") if is_reproducible else "")


CHECKPOINTS = {
    "none": ({"checkpoint_seconds": 0.0}, None, False),
    "by time": ({}, None, True),
    "the best": ({"checkpoint_seconds": 0.0, "checkpoint_best": "loss"}, None, True),
    "of before": ({"checkpoint_seconds": 0.0}, BEFORE, True),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoints_are_kept_where_the_job_wants_any(orders, case):
    """By time, of the best state, or to go on from earlier ones."""
    settings, resume, is_kept = CHECKPOINTS[case]
    _, settings = launched(orders, JobConfig(**settings), resume=resume)
    assert (settings.launch.checkpoints is not None) is is_kept


def test_checkpoints_are_kept_where_the_job_says(orders):
    """Each node can go on from there."""
    _, settings = launched(orders, JobConfig(checkpoint_url="s3://bucket/one"))
    assert settings.launch.checkpoints.folder == "s3://bucket/one"


def test_a_node_without_settings_is_one_with_defaults(orders):
    """And so is a job."""
    _, settings = launched(orders, JobConfig(), node=NodeConfig(name="beta"))
    assert (settings.node, settings.launch.job) == (NodeSettings(), JobSettings())


def as_slot(name, index, number, **node):
    """A slot as far as its variables depend on it."""
    return SimpleNamespace(
        worker=WorkerId(name, index), number=number, node=NodeConfig(name=name, **node)
    )


REMOTE = {"launcher": "ssh", "address": "10.0.0.7"}
SLOTS = {
    "alpha:0": as_slot("alpha", 0, 0),
    "alpha:1": as_slot("alpha", 1, 1),
    "beta:0": as_slot("beta", 0, 2, **REMOTE),
}
TORCHRUN = {
    "alpha:0": ("0", "3", "0", "2", "0", "2"),
    "alpha:1": ("1", "3", "1", "2", "0", "2"),
    "beta:0": ("2", "3", "0", "1", "1", "2"),
}
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


@pytest.mark.parametrize("name", TORCHRUN)
def test_the_variables_of_torchrun_are_those_of_the_slots_that_there_are(name):
    """As it would number the same processes; the first worker's machine is the master."""
    found = torchrun_variables(SLOTS[name], SLOTS.values(), "10.0.0.1")
    assert tuple(found[variable] for variable in NUMBERS) == TORCHRUN[name]
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_slots_that_are_gone_leave_their_number_to_others():
    """No number is there twice, and all are below the size."""
    slots = [SLOTS["alpha:1"], SLOTS["beta:0"]]
    found = torchrun_variables(SLOTS["beta:0"], slots, "10.0.0.1")
    assert [found[name] for name in NUMBERS] == ["2", "3", "0", "1", "1", "2"]
    found = torchrun_variables(SLOTS["beta:0"], slots[1:], "10.0.0.1")
    assert found["MASTER_ADDR"] == "10.0.0.7"


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_variables_of_torchrun_are_set_on_request_only(orders, monkeypatch, is_asked):
    """Packages that see them start torch.distributed; what the node's `env` says counts more."""
    monkeypatch.delenv("HETERO_HVD_TORCHRUN_VARIABLES", raising=False)
    node = NodeConfig(name="alpha", env={"MASTER_PORT": "4444"})
    found, _ = launched(orders, JobConfig(torchrun_variables=is_asked), node=node)
    assert found["MASTER_PORT"] == "4444"
    assert {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} <= found.keys() or not is_asked
    assert ("RANK" in found) == ("HETERO_HVD_TORCHRUN_VARIABLES" in found) == is_asked
