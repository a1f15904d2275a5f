"""What a worker is told at its start, by its environment; what is secret there does not stay."""

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from hetero_hvd.config.variables import RecordConfig
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.errors import UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import (
    BenchmarkSettings,
    CheckpointSettings,
    EmulateSettings,
    JobSettings,
    NodeSettings,
    TraceSettings,
    TriedOptions,
    WorkerIdentity,
    WorkerLaunch,
    launch_to_text,
)
from hetero_hvd.worker.session import launch_settings
from hetero_hvd.worker.session.launch_settings import read_launch_settings

IDENTITY = WorkerIdentity(worker=WorkerId("alpha", 0), host="alpha-0", driver=("127.0.0.1", 4000))
EVERYTHING = WorkerLaunch(
    identity=IDENTITY,
    node=NodeSettings(
        emulate=EmulateSettings(seconds_per_sample=0.01, noise_ratio=0.5, noise_seed=3),
        interface="eth0",
        max_local_batch_size=64,
        memory_limit_bytes=2**34,
    ),
    job=JobSettings(
        mode="reproducible",
        grain=8,
        cpu_capability="avx512",
        fingerprint_steps=100,
        staleness_bound=2,
        staleness_warmup_steps=7,
        nvtx=True,
        hang_timeout_seconds=12.5,
        elastic_timeout_seconds=90.0,
        log_format="json",
    ),
    checkpoints=CheckpointSettings(folder="out", run="one", best="-loss", resume="before"),
    traces=TraceSettings(folder="traces", from_step=3, to_step=5, workers=("alpha:0",)),
    fingerprints="fingerprints.jsonl",
    check_steps=50,
    max_micro_batch=16,
    benchmark=BenchmarkSettings(seconds=10.0, is_fresh=True),
    tried=TriedOptions(compression="fp16"),
)
VARIABLES = {
    "HETERO_HVD_LAUNCH": launch_to_text(EVERYTHING),
    "HETERO_HVD_WORKER": "alpha:0",
    "HETERO_HVD_TLS": "a key\n-----BEGIN CERTIFICATE-----\n",
}


def test_the_job_s_secrets_leave_the_environment_when_they_are_read(monkeypatch):
    """A process that the script starts does not inherit them; this one can be asked again."""
    monkeypatch.setattr(launch_settings, "_secrets", {})
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    settings = read_launch_settings()
    assert settings.tls == VARIABLES["HETERO_HVD_TLS"].encode()
    assert read_launch_settings() == settings
    assert settings.worker == WorkerId("alpha", 0)
    assert not launch_settings.SECRETS & os.environ.keys()
    child = subprocess.check_output(["env"], text=True)
    assert "HETERO_HVD_LAUNCH" in child
    assert "a key" not in child


def test_all_of_the_record_arrives_whatever_else_a_user_has_set():
    """Under our driver the job decides; no field has its default here."""
    user = {"HETERO_HVD_GRAIN": "32", "HETERO_HVD_CHECK_STEPS": "9", "HETERO_HVD_BALANCE": "no"}
    settings = read_launch_settings(VARIABLES | user)
    assert settings.launch == EVERYTHING
    assert (settings.driver, settings.capacity, settings.name(3)) == (
        ("127.0.0.1", 4000),
        64,
        "alpha:0",
    )
    for part in (EVERYTHING, EVERYTHING.node, EVERYTHING.job):
        usual = type(part)()
        assert not [
            name for name in part.__struct_fields__ if getattr(part, name) == getattr(usual, name)
        ]


def told(text):
    """The record as the driver would write it, with a piece in another form."""
    return {"HETERO_HVD_LAUNCH": text}


TRUE_OR_JSON = "true or false, or the balancer's settings as JSON in braces"
MALFORMED = {
    "no JSON": (told("{"), "HETERO_HVD_LAUNCH: Input data was truncated"),
    "no record": (told("[]"), r"HETERO_HVD_LAUNCH: Expected `object`, got `array`"),
    "a part that is not known": (
        told('{"nodes": {}}'),
        "HETERO_HVD_LAUNCH: .* unknown field `nodes`",
    ),
    "a key that is not known": (
        told('{"node": {"speed": 1}}'),
        r"HETERO_HVD_LAUNCH: .* unknown field `speed` - at `\$.node`",
    ),
    "another type": (
        told('{"checkpoints": {"folder": 1, "run": ""}}'),
        r"HETERO_HVD_LAUNCH: Expected `str`, got `int` - at `\$.checkpoints.folder`",
    ),
    "a missing one": (
        told('{"traces": {}}'),
        r"HETERO_HVD_LAUNCH: Object missing required field `folder` - at `\$.traces`",
    ),
    "out of range": (
        told('{"max_micro_batch": -1}'),
        r"HETERO_HVD_LAUNCH: Expected `int` >= 0 - at `\$.max_micro_batch`",
    ),
    "no record at all": ({"HETERO_HVD_WORKER": "alpha:0"}, "HETERO_HVD_LAUNCH: is missing, though"),
    "no certificate": (told(launch_to_text(EVERYTHING)), "HETERO_HVD_TLS: is missing or no cert"),
    "one that is none": (VARIABLES | {"HETERO_HVD_TLS": "xy"}, "HETERO_HVD_TLS: is missing or no"),
    "a flag": (
        {"HETERO_HVD_REPRODUCIBLE": "maybe"},
        "REPRODUCIBLE: found 'maybe', must be true or",
    ),
    "a number": (
        {"HETERO_HVD_GRAIN": "0"},
        "HETERO_HVD_GRAIN: found '0', must be an integer of at",
    ),
    "a bound": ({"HETERO_HVD_STALENESS_BOUND": "9"}, "STALENESS_BOUND: found '9', .* from 0 to 8"),
    "steps": ({"HETERO_HVD_CHECK_STEPS": "x"}, "HETERO_HVD_CHECK_STEPS: found 'x', must be an int"),
    "a word": ({"HETERO_HVD_LOG_FORMAT": "xml"}, "HETERO_HVD_LOG_FORMAT: found 'xml', must be"),
    "a tag": ({"HETERO_HVD_TAGS": "lr"}, "HETERO_HVD_TAGS: found 'lr', must be NAME=VALUE with"),
    "a name": ({"HETERO_HVD_NAME": "a\nb"}, "HETERO_HVD_NAME: found 'a.nb', must be one line"),
    "a port": ({"HETERO_HVD_HTTP_PORT": "x"}, "HETERO_HVD_HTTP_PORT: found 'x', must be an int"),
    "an address": (
        {"HETERO_HVD_HTTP_ADDRESS": "0.0.0.0"},  # noqa: S104 - is refused
        "environment: HETERO_HVD_HTTP_ADDRESS: found 0.0.0.0, must be 127.0.0.1 unless",
    ),
    "an export": (
        {"HETERO_HVD_EXPORT": "postgresql://me:secret1@db/x nothing"},
        r"HETERO_HVD_EXPORT: found 'postgresql://me:\(hidden\)@db/x nothing', must be",
    ),
    "a balance": ({"HETERO_HVD_BALANCE": "5"}, f"BALANCE: found '5', must be {TRUE_OR_JSON}"),
    "a balance in a list": (
        {"HETERO_HVD_BALANCE": "[1]"},
        rf"BALANCE: found '\[1\]', must be {TRUE_OR_JSON}",
    ),
    "a balancer": (
        {"HETERO_HVD_BALANCE": '{"rul": "lbb"}'},
        "environment: HETERO_HVD_BALANCE: unknown key 'rul'; known keys are 'balance', 'rule', ",
    ),
    "a balancer's rule": (
        {"HETERO_HVD_BALANCE": '{"rule": "lb"}'},
        "environment: HETERO_HVD_BALANCE: rule: found 'lb', must be 'model' or 'static' or ",
    ),
    "a balancer's rule in another mode": (
        {"HETERO_HVD_BALANCE": '{"rule": "lbb"}', "HETERO_HVD_REPRODUCIBLE": "1"},
        "environment: HETERO_HVD_BALANCE: rule: found lbb, must be model: only that plans",
    ),
    "a rule in another mode": (
        {"HETERO_HVD_RULE": "lbb", "HETERO_HVD_REPRODUCIBLE": "1"},
        "environment: HETERO_HVD_RULE: found lbb, must be model: only that plans",
    ),
    "a balancer's ratio": (
        {"HETERO_HVD_BALANCE": '{"min_gain_ratio": 7}'},
        "HETERO_HVD_BALANCE: min_gain_ratio: found 7, must be a number of at least 0 and at most 1",
    ),
    "a balancer's number": (
        {"HETERO_HVD_BALANCE": '{"baseline_steps": "9"}'},
        "HETERO_HVD_BALANCE: baseline_steps: found '9', must be an integer of at least 0",
    ),
    "a balancer's range": (
        {"HETERO_HVD_BALANCE": '{"grain": 0}'},
        "environment: HETERO_HVD_BALANCE: grain=0: must be >= 1",
    ),
    "a balancer's type": (
        {"HETERO_HVD_BALANCE": '{"relative_speeds": [1]}'},
        r"HETERO_HVD_BALANCE: Expected `object`, got `array` - at `\$.relative_speeds`",
    ),
    "two of a balancer": (
        {"HETERO_HVD_BALANCE": '{"rule": "lb", "balance": 1}'},
        "HETERO_HVD_BALANCE: balance: found 1, must be true or false; rule: found 'lb', must be ",
    ),
    "a balancer's JSON": (
        {"HETERO_HVD_BALANCE": "{"},
        "environment: HETERO_HVD_BALANCE: Input data was truncated",
    ),
    "a balancer's text": (
        {"HETERO_HVD_BALANCE": '{"rule": "\udcff"}'},
        "environment: HETERO_HVD_BALANCE: 'utf-8' codec can't encode character",
    ),
}
"""Variables, and what is said."""


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_variable_is_one_line_that_names_it(case):
    """Whoever has set it."""
    variables, words = MALFORMED[case]
    with pytest.raises(UserError, match=words) as caught:
        read_launch_settings(variables)
    assert "\n" not in str(caught.value)


READING = """
from hetero_hvd.worker.session.launch_settings import read_launch_settings
try:
    read_launch_settings()
except Exception:
    print("caught")
"""
WRONG_ALONE = {
    "one": ({"HETERO_HVD_SAMPLE_SECONDS": "often"}, ["SAMPLE_SECONDS: found 'often', must be"]),
    "two": (
        {"HETERO_HVD_SAMPLE_SECONDS": "often", "HETERO_HVD_RECORD": "maybe"},
        ["SAMPLE_SECONDS: found 'often', must be", "RECORD: found 'maybe', must be"],
    ),
    "two that contradict each other": (
        {"HETERO_HVD_HTTP_CERTIFICATE": "a.pem", "HETERO_HVD_HTTP_PORT": "0"},
        ["together"],
    ),
    "a balancer": ({"HETERO_HVD_BALANCE": "{"}, ["HETERO_HVD_BALANCE: Input data was truncated"]),
    "a folder without a name": ({"HETERO_HVD_OUTPUT": "/"}, ["OUTPUT: found '/', must be a path"]),
    "under horovodrun": (
        {"HOROVOD_RANK": "1", "HOROVOD_HOSTNAME": "b", "HETERO_HVD_GRAIN": "0"},
        ["GRAIN: found '0', must be"],
    ),
    "none": ({"HETERO_HVD_SAMPLE_SECONDS": "2"}, []),
}


@pytest.mark.parametrize("case", WRONG_ALONE)
def test_a_wrong_variable_ends_a_script_that_runs_alone_with_one_line_each(case):
    """Exit code 2, and no traceback, as of a command."""
    variables, words = WRONG_ALONE[case]
    own = {name: value for name, value in os.environ.items() if not name.startswith("HETERO_HVD_")}
    done = subprocess.run(
        [sys.executable, "-c", READING],
        env=own | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2 if words else 0, "")
    lines = done.stderr.splitlines()
    assert len(lines) == len(words)
    for line, part in zip(sorted(lines), sorted(words), strict=True):
        assert line.startswith("hetero-hvd: environment: ")
        assert part in line


ALONE = {
    "nothing": ({}, {}, {}),
    "empty ones": ({"HETERO_HVD_GRAIN": "", "HETERO_HVD_LAUNCH": ""}, {}, {}),
    "the mode": (
        {"HETERO_HVD_REPRODUCIBLE": "1", "HETERO_HVD_GRAIN": "4"},
        {"mode": "reproducible", "grain": 4},
        {},
    ),
    "staleness": (
        {"HETERO_HVD_STALENESS_BOUND": "2", "HETERO_HVD_STALENESS_WARMUP_STEPS": "0"},
        {"staleness_bound": 2, "staleness_warmup_steps": 0},
        {},
    ),
    "rounds, and how it logs": (
        {"HETERO_HVD_WAIT_FREE": "true", "HETERO_HVD_LOG_FORMAT": "json"},
        {"mode": "wait_free", "log_format": "json"},
        {},
    ),
    "fingerprints": (
        {"HETERO_HVD_FINGERPRINTS": "here", "HETERO_HVD_FINGERPRINT_STEPS": "5"},
        {"fingerprint_steps": 5},
        {"fingerprints": "here"},
    ),
    "checks": ({"HETERO_HVD_CHECK_STEPS": "0"}, {}, {"check_steps": 0}),
    "a record by hand": (
        {"HETERO_HVD_LAUNCH": '{"node": {"interface": "lo"}}', "HETERO_HVD_GRAIN": "2"},
        {"grain": 2},
        {"node": NodeSettings(interface="lo")},
    ),
}
"""What a user sets, and the fields that become of it."""


@pytest.mark.parametrize("case", ALONE)
def test_without_a_driver_the_user_s_variables_make_up_the_record(case):
    """Under `horovodrun` with Horovod's name for the host, and alone."""
    variables, job, more = ALONE[case]
    expected = WorkerLaunch(job=JobSettings(**job), **more)
    settings = read_launch_settings(variables)
    assert (settings.launch, settings.tls, settings.name(3)) == (expected, b"", "rank 3")
    horovod = {"HOROVOD_HOSTNAME": "gpu_box", "HOROVOD_LOCAL_RANK": "2"}
    identity = WorkerIdentity(worker=WorkerId("gpu-box", 2), host="gpu-box")
    assert read_launch_settings(variables | horovod).launch == replace(expected, identity=identity)


BALANCE = {
    "": BalanceConfig(),
    "true": BalanceConfig(),
    "off": BalanceConfig(balance=False),
    '{"balance": false}': BalanceConfig(balance=False),
    '{"exchange_seconds": 0.5}': BalanceConfig(exchange_seconds=0.5),
    '{"min_gain_ratio": 1}': BalanceConfig(min_gain_ratio=1.0),
    '{"relative_speeds": {"alpha": 2}}': BalanceConfig(relative_speeds={"alpha": 2.0}),
}


@pytest.mark.parametrize("text", BALANCE)
def test_whether_to_balance_is_said_as_everywhere_or_with_all_else(text):
    """The job's setting by the same name; the balancer's settings as JSON are taken as before."""
    assert read_launch_settings({"HETERO_HVD_BALANCE": text}).lead.balance == BALANCE[text]


LEADS = {
    "nothing": ({}, {"output": None, "export": ()}, RecordConfig(), False),
    "a page and a place": (
        {"HETERO_HVD_HTTP_PORT": "0", "HETERO_HVD_OUTPUT": "here"},
        {"http_port": 0, "output": "here"},
        RecordConfig(),
        True,
    ),
    "labels": (
        {"HETERO_HVD_NAME": "r50 on two", "HETERO_HVD_TAGS": "lr=0.1  opt="},
        {},
        RecordConfig(name="r50 on two", tags=("lr=0.1", "opt=")),
        False,
    ),
    "no record": ({"HETERO_HVD_RECORD": "no"}, {}, RecordConfig(record=False), False),
    "exports": (
        {"HETERO_HVD_EXPORT": "csv:a.csv influx:b", "HETERO_HVD_SAMPLE_SECONDS": "0"},
        {"export": ("csv:a.csv", "influx:b"), "sample_seconds": 0},
        RecordConfig(),
        False,
    ),
    "the mode": (
        {"HETERO_HVD_REPRODUCIBLE": "1"},
        {"training_mode": "reproducible"},
        RecordConfig(),
        False,
    ),
    "how to balance": (
        {"HETERO_HVD_RULE": "lbb", "HETERO_HVD_BASELINE_STEPS": "9"},
        {"rule": "lbb", "baseline_steps": 9},
        RecordConfig(),
        False,
    ),
    "the balancer as a whole": (
        {"HETERO_HVD_BALANCE": '{"rule": "lbb", "balance": false}'},
        {"rule": "lbb", "balance": False},
        RecordConfig(),
        False,
    ),
}
"""Variables, settings of the job as they are recorded, labels, and whether there is a page."""


@pytest.mark.parametrize("case", LEADS)
def test_without_a_driver_the_variables_say_what_is_left_of_the_run(case):
    """By the names of the job's settings."""
    given, job, record, has_page = LEADS[case]
    lead = read_launch_settings(given).lead
    assert {name: getattr(lead.job, name) for name in job} == job
    assert (lead.record, lead.has_page) == (record, has_page)
    assert (lead.balance.rule, lead.balance.balance) == (lead.job.rule, lead.job.balance)


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import hetero_hvd

model = torch.nn.Linear(1, 1)
loader = DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4)
trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters()), loader)
for _ in trainer.epochs(1):
    for (x,) in trainer.batches():
        trainer.step(lambda x: model(x).mean(), x)
"""


@pytest.mark.process
def test_a_variable_that_nobody_knows_is_told_to_a_script_that_runs_alone():
    """In one line, and the script trains."""
    variables = os.environ | {"HETERO_HVD_GRAINS": "4", "HETERO_HVD_STALENES_BOUND": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, check=True, capture_output=True, text=True
    )
    found = [line for line in done.stderr.splitlines() if "HETERO_HVD_" in line]
    assert len(found) == 1
    for name, near in (("GRAINS", "GRAIN"), ("STALENES_BOUND", "STALENESS_BOUND")):
        advice = f"there is no such variable; did you mean HETERO_HVD_{near}?"
        assert f"environment: HETERO_HVD_{name}: {advice}" in found[0]
