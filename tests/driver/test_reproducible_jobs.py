"""Whole jobs in the reproducible mode: no fault and no other cluster changes a bit."""

import json
import os
import platform
import signal
import sys
from pathlib import Path

import pytest

from hetero_hvd.run.reports.comparing.fingerprints import compare

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
SCRIPT = str(Path(__file__).with_name("reproducible.py"))
EPOCHS = 20
MODE = ("--reproducible", "--grain", "8", "--fingerprint-steps", "1", "--progress-seconds", "0.2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Folder of a run of one worker that nothing happened to, kept for all tests."""
    return tmp_path_factory.mktemp("alone")


@pytest.fixture
def start(start_job):
    """Starts the training under an output folder's name."""
    return lambda *names, output="out", arguments=(), script=(), **settings: start_job(
        *MODE,
        *("--output", str(output)),
        *arguments,
        names=names,
        command=(SCRIPT, str(EPOCHS), *script),
        **settings,
    )


def expect_equal(start, alone, folder):
    """The run in `folder` has the fingerprints of the undisturbed one."""
    if not (alone / "fingerprints.jsonl").exists():
        assert start("alpha", output=alone).wait(60) == 0
    found = compare(alone, folder)
    assert found.are_equal, found.lines
    assert f"the last after step {EPOCHS * 8} (epoch {EPOCHS - 1})" in found.lines[0]


def test_a_kill_and_a_join(start, alone, tmp_path):
    """A worker dies, two go on, it comes back as a fresh process: as if one had trained alone."""
    job = start("alpha", "beta", "gamma", script=("2",))
    job.wait_for(r"step [1-9]\d*  epoch")
    os.kill(job.pid_of("beta:0"), signal.SIGKILL)
    job.wait_for(r"2 workers train together: alpha:0, gamma:0")
    job.wait_for(r"3 workers train together: alpha:0, gamma:0, beta:0")
    assert job.wait(40) == 0
    expect_equal(start, alone, tmp_path / "out")


@pytest.mark.matrix
def test_resumed_on_another_number_of_workers(start, alone, tmp_path):
    """Stopped on three, gone on from the checkpoint on two."""
    job = start("alpha", "beta", "gamma", checkpoint_seconds=0.3)
    job.wait_for(r"step [1-9]\d*  epoch")
    job.wait_for(r"step \d\d+  epoch [1-9]")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    reached = len((tmp_path / "out" / "fingerprints.jsonl").read_text().splitlines())
    again = start(
        "alpha", "beta", output="second", arguments=("--resume", "out"), checkpoint_seconds=9
    )
    assert again.wait(100) == 0
    rest = len((tmp_path / "second" / "fingerprints.jsonl").read_text().splitlines())
    assert rest < EPOCHS * 9
    assert reached + rest >= EPOCHS * 9
    expect_equal(start, alone, tmp_path / "second")


@pytest.mark.matrix
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
def test_the_instruction_set_is_the_runs(start, alone, tmp_path):
    """It is kept with the fingerprints; another one gives other bits; no resume may change it."""
    if not (alone / "fingerprints.jsonl").exists():
        assert start("alpha", output=alone).wait(60) == 0
    first = json.loads((alone / "fingerprints.jsonl").read_text().partition("\n")[0])
    assert "cpu_capability avx2; arithmetic " in first["numerics"]
    settings = {"cpu_capability": "default", "checkpoint_seconds": 0.3}
    job = start("alpha", "beta", **settings)
    job.wait_for(r"step \d\d+  epoch [1-9]")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    found = compare(alone, tmp_path / "out")
    assert not found.are_equal
    assert "cpu_capability default" in "\n".join(found.lines)
    again = start("alpha", output="second", arguments=("--resume", "out"))
    assert again.wait() == 2
    assert "cpu_capability was default and is avx2: a reproducible run" in "\n".join(again.output)


def test_a_job_without_the_mode_says_how_to_start_it(start_job):
    """The script asks for it: the driver must plan in its grains."""
    job = start_job(names=("alpha",), command=(SCRIPT, "1"))
    assert job.wait() == 2
    assert "start it with hetero-hvd run --reproducible --grain 8" in "\n".join(job.output)


OLD_MACHINE = """#!{python}
import sys
from pathlib import Path
from hetero_hvd import supervisor
supervisor.CPU_INFO = Path(__file__).with_name("cpuinfo")
sys.exit(supervisor.main())
"""
"""In the place of a node's interpreter: its processor is said to be an old one."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
def test_a_node_with_an_old_processor_is_refused_and_the_others_train(start, tmp_path):
    """Though it is refused before any other one is ready."""
    (tmp_path / "cpuinfo").write_text("flags : fpu sse2 sse4_1 avx\n")
    python = tmp_path / "python"
    python.write_text(OLD_MACHINE.format(python=sys.executable))
    python.chmod(0o755)
    job = start("alpha", f"beta, python: {python}")
    job.wait_for(r"beta:0 is refused \(cpu_capability=avx2: this processor has no avx2, fma: leave")
    job.wait_for(r"step \d\d+  epoch [1-9]")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
