"""What `hetero-hvd trial` has measured decides where the job of that script is placed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.queue.tried import trials_of
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.queue_events import JobSubmitted, ModelTried
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.queue.why_waiting import why
from hetero_hvd.discovery.submission.pinned_script import place_of_script
from hetero_hvd.discovery.submission.queue_link import SubmittedTrial
from hetero_hvd.errors import UserError
from hetero_hvd.hub.queue.devices.tried_nodes import tried
from hetero_hvd.hub.queue.queue_cluster import QueueCluster
from hetero_hvd.messages import PlacementTried, TrialReported, WorkerId
from hetero_hvd.run.records.placements import NAME, keep_trial
from tests.hub.queue.queue_rig import QueueHub, until

SECONDS = {"alpha": 1e-3, "beta": 2e-3, "gamma": 2e-2}
NODES = [
    {"name": name, "devices": [], "emulate": {"seconds_per_sample": seconds}}
    for name, seconds in SECONDS.items()
]
EMULATED = {
    f"{name}:0": f"CPU, 1 threads, emulated: seconds_per_sample {seconds:g}"
    for name, seconds in SECONDS.items()
}
SPEEDS = {"alpha beta": 800.0, "alpha beta gamma": 700.0, "alpha": 600.0, "alpha gamma": 500.0}
GUESSED = {"beta": (200.0, 500.0), "gamma": (10.0, 60.0), "beta gamma": (250.0, 500.0)}
BEST, ALL = ["alpha:0", "beta:0"], ["alpha:0", "beta:0", "gamma:0"]


def report(*, speeds=SPEEDS, guessed=GUESSED, devices=EMULATED, model="Net 1", is_complete=True):
    """What the trial of a model says."""
    placements = [
        PlacementTried(
            nodes=tuple(nodes.split()), rounds=(0, 1, 2), samples_per_second=(v, v, v / 2)
        )
        for nodes, v in speeds.items()
    ]
    placements += [
        PlacementTried(nodes=tuple(nodes.split()), predicted_low=low, predicted_high=high)
        for nodes, (low, high) in guessed.items()
    ]
    return TrialReported(
        step=9,
        is_complete=is_complete,
        goal="speed",
        words="best",
        model=model,
        global_batch_size=64,
        workers=tuple(WorkerId.parse(name) for name in devices),
        devices=tuple(devices.values()),
        placements=tuple(placements),
    )


def kept(*reports, script="train.py", **fields):
    """The file has these."""
    for number, each in enumerate(reports):
        place = place_of_script([script], Path.cwd())
        now = time.time() - 2.0 + number
        keep_trial(Path("runs", f"r{number}"), each, script=place, at_unix_seconds=now)
    if (path := Path("runs", NAME)).exists():
        path.write_text(json.dumps([line | fields for line in json.loads(path.read_text())]))


def damaged(content):
    """The file is this."""
    Path("runs", NAME).write_bytes(content)


def unmeasured():
    """What was measured is taken out of the file."""
    path = Path("runs", NAME)
    lines = json.loads(path.read_text())
    for each in lines[0]["trial"]["placements"]:
        each |= {"rounds": [], "samples_per_second": []}
    path.write_text(json.dumps(lines))


ALONE = {"alpha beta gamma": 700.0}
OTHERS = {"delta:0": "GPU", "epsilon:0": "GPU"}
UNKNOWN = "no trial counts: the trial of r0 compares no sets of these nodes: "

# fmt: off
FILES = {
    "a trial": (lambda: kept(report()), BEST, "800 samples/s measured by the trial of r0; left"),
    "not complete": (lambda: kept(report(guessed={}, is_complete=False)), BEST, "the trial of r0"),
    "one set alone was measured":
        (lambda: kept(report(speeds=ALONE, guessed={})), ALL, UNKNOWN[:-2]),
    "nothing was measured": (lambda: kept(report(speeds={})), ALL, ""),
    "another script": (lambda: kept(report(), script="other.py"), ALL, ""),
    "the newest is of another model":
        (lambda: kept(report(), report(speeds=SPEEDS | {"alpha": 900.0}, model="N")),
         ["alpha:0"], "900 samples/s measured by the trial of r1"),
    "other nodes":
        (lambda: kept(report(devices=OTHERS, speeds={"delta": 2.0, "delta epsilon": 1.0})), ALL,
         f"{UNKNOWN}delta is not in the cluster; epsilon is not in the cluster"),
    "a node more": (lambda: kept(report(devices=EMULATED | OTHERS)), BEST, "the trial of r0"),
    "more workers of a node":
        (lambda: kept(report(devices={**EMULATED, "alpha:1": EMULATED["alpha:0"]})), ALL,
         f"{UNKNOWN}alpha has 1 devices and had 2 workers"),
    "other emulated speeds":
        (lambda: kept(report(devices={**EMULATED, "alpha:0": "CPU, emulated: relative_speed 1"})),
         ALL, f"{UNKNOWN}alpha is emulated otherwise than it was"),
    "not emulated": (lambda: kept(report(devices=dict.fromkeys(EMULATED, "CPU"))), ALL, UNKNOWN),
    "too old": (lambda: kept(report(), at_unix_seconds=1.0), ALL, ""),
    "of a clock that is behind": (lambda: kept(report(), at_unix_seconds=time.time() + 600), BEST,
        "the trial of r0"),
    "of a clock that was wrong":
        (lambda: kept(report(), at_unix_seconds=time.time() + 1e6), ALL, ""),
    "of a clock without end": (lambda: kept(report(), at_unix_seconds=1e308), ALL, ""),
    "edited: nothing is measured": (lambda: (kept(report()), unmeasured()), ALL, UNKNOWN[:-2]),
    "of an earlier version": (lambda: kept(report(), at_unix_seconds=None), ALL, ""),
    "edited: no model": (lambda: kept(report(model="")), ALL, ""),
    "edited: a name for a terminal":
        (lambda: kept(report(), run="\x1b[2J"), ALL, ""),
    "a line of a later version": (lambda: kept(report(), added_later=1), ALL, ""),
    "none": (lambda: None, ALL, ""),
    "empty": (lambda: damaged(b""), ALL, ""),
    "cut off": (lambda: damaged(b'[{"run": "r'), ALL, ""),
    "no text": (lambda: damaged(b"\xff" * 100), ALL, ""),
    "nested": (lambda: damaged(b"[" * 10**5), ALL, ""),
    "a folder": (lambda: Path("runs", NAME).mkdir(), ALL, ""),
    "a pipe": (lambda: os.mkfifo(Path("runs", NAME)), ALL, ""),
}
"""What is in the file of trials; where the job is placed, and what is said of it."""
# fmt: on


@pytest.fixture(name="place")
def placing(tmp_path, monkeypatch):
    """A job of train.py in a folder with such a file, in a queue of three nodes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "cluster.yaml").write_text(json.dumps({"nodes": NODES}))

    def place(make):
        make()
        cluster = QueueCluster(tmp_path / "cluster.yaml", {})
        state = QueueState(cluster.devices)
        found, lines = trials_of(["train.py"], None)
        words = ""
        for each in msgspec.convert(msgspec.to_builtins(found), list[SubmittedTrial]):
            measured = tried(each, cluster.emulations, 0.0)
            words = measured if isinstance(measured, str) else ""
            if not words:
                state.handle(ModelTried("ann", "train.py", each.model, measured), 0.0)
        request = JobRequest(
            job="1", user="ann", script="train.py", max_devices=3, work=1e6, trial_words=words
        )
        state.handle(JobSubmitted(request), 0.0)
        decide(state, 0.0)
        return list(state.jobs["1"].devices), why(state, "1", 0.0), lines

    return place


@pytest.mark.parametrize("case", FILES.values(), ids=FILES.keys())
def test_a_file_of_trials_places_a_job_or_is_of_no_use(place, case):
    """Whatever is in it, the job is submitted."""
    make, devices, words = case
    found, said, _ = place(make)
    assert found == devices, said
    assert words in said
    assert ("trial" in said) == bool(words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"at_unix_seconds": 1.0}, "d old: it does not count"),
        ({"at_unix_seconds": None}, "the trial of r0 is of a time that is not told"),
        ({"at_unix_seconds": 1e11}, "the trial of r0 is of a time that is still to come"),
    ],
)
def test_who_submits_is_told_of_a_trial_that_is_too_old(place, fields, words):
    """By one line."""
    _, _, (line,) = place(lambda: kept(report(), **fields))
    assert words in line


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (lambda: None, "nowhere", "--trials: nowhere: No such file or directory"),
        (lambda: None, "n" * 300, "--trials: nnn"),
        (lambda: None, "runs", "--trials: runs/placements.json: No such file or directory"),
        (lambda: damaged(b"{"), "runs", "--trials: runs/placements.json has no trial of "),
        (lambda: kept(report(), script="other.py"), f"runs/{NAME}", "has no trial of "),
    ],
)
def test_a_file_that_was_named_has_to_be_there(place, make, given, words):
    """Else nobody would know that it does nothing."""
    place(make)
    with pytest.raises(UserError) as error:
        trials_of(["train.py"], given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hub_places_the_job_and_says_so(tmp_path, monkeypatch, capsys):
    """From the file of a trial through `submit` to `queue`; it is remembered without the file."""
    hub = QueueHub(tmp_path, NODES)
    try:
        hub.start()
        monkeypatch.chdir(tmp_path / "tree")
        Path("runs").mkdir()
        kept(report())
        fields = json.dumps({"folder": str(tmp_path / "first")})
        (tmp_path / "first").mkdir()
        words = ["submit", "--min", "1", "--max", "3", "--socket", str(hub.socket), "--"]
        for number in (1, 2):
            assert main([*words, "train.py", fields]) == 0
            assert capsys.readouterr().out == f"job {number}\n"
            until(
                lambda number=number: hub.job(number)["devices"] == BEST, lambda: hub.order("list")
            )
            said = hub.job(number)["why"]
            assert "800 samples/s measured by the trial of r0; left out" in said
            hub.order("cancel", job=number)
            Path("runs", NAME).unlink(missing_ok=True)
    finally:
        hub.close()
