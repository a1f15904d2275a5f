"""`scripts/gpu-check`: what it says without a GPU, and its three checks with a CPU in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
FOUND = CHECKOUT / ".gpu-check" / "found.json"


def run(*words, timeout=400):
    """Run the command with the Python of the tests."""
    return subprocess.run(
        [CHECKOUT / "scripts" / "gpu-check", *words],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gradient"], "unknown part 'gradient': must be of install, gradients, oom, kill"),
        (["install"], "no Python with torch and a GPU"),
    ],
)
def test_what_cannot_be_checked_is_said_in_one_line(words, said):
    """Exit code 2; a machine with a GPU would install."""
    torch = pytest.importorskip("torch")
    if "install" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU: scripts/gpu-check runs for real")
    done = run(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.matrix
@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_checks_pass_with_a_cpu_in_the_place_of_the_gpu():
    """Equal gradients, out of memory, a kill: each leaves its record, with its evidence."""
    done = run("--rehearse", "gradients", "oom", "kill", timeout=590)
    assert done.returncode == 0, done.stdout
    found = json.loads(FOUND.read_text())
    assert all(found[part]["passed"] and found[part]["rehearsal"] for part in ("gradients", "oom"))
    assert found["oom"]["micro_batches"][0] > found["oom"]["micro_batches"][-1]
    assert found["kill"]["workers"] == ["left-cpu:0"]
