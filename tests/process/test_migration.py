"""What `docs/guide/migrate.md` shows is the change, and the change does not change the result."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
GUIDE = (ROOT / "docs" / "guide" / "migrate.md").read_text()
BEFORE = ("horovod_plain", "horovod_elastic", "ddp")
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
pytestmark = pytest.mark.timeout(120)


def code_lines(name):
    """The lines of an example that are not blank, without its first one."""
    return [line for line in (EXAMPLES / f"{name}.py").read_text().splitlines()[1:] if line.strip()]


def diff_of(name):
    """The lines that the guide shows as removed from this example, and as added."""
    section = GUIDE[GUIDE.index(f"../examples/{name}.py") :]
    shown = re.search(r"```diff\n(.*?)```", section, re.DOTALL)[1].splitlines()
    return [[line[1:] for line in shown if line[:1] == sign] for sign in "-+"]


@pytest.mark.parametrize("name", BEFORE)
def test_the_changes_shown_are_all(name):
    """What is left of either script is the same."""
    removed, added = diff_of(name)
    before, after = code_lines(name), code_lines("migrated")
    for line in removed:
        before.remove(line)
    for line in added:
        after.remove(line)
    assert before == after


def loss_of(*command, folder, **variables):
    """What a script prints at its end, once."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (loss,) = re.findall(r"loss ([\d.]+)$", done.stdout, re.MULTILINE)
    return float(loss)


@pytest.mark.matrix
@pytest.mark.process
def test_all_give_the_same(tmp_path):
    """On one process each; elastic Horovod's unchanged on two nodes, whose batches are the same."""
    found = {
        name: loss_of(sys.executable, EXAMPLES / f"{name}.py", folder=tmp_path, **TORCHRUN)
        for name in (*BEFORE, "migrated")
    }
    nodes = (
        "nodes:\n  - {name: one, slots: 1, devices: []}\n  - {name: two, slots: 1, devices: []}\n"
    )
    (tmp_path / "nodes.yaml").write_text(nodes)
    run = (sys.executable, "-m", "hetero_hvd", "run", "--", EXAMPLES / "horovod_elastic.py")
    found["two nodes"] = loss_of(*run, folder=tmp_path)
    assert 0.0 < found["migrated"] < 1.0, found
    assert found == pytest.approx(dict.fromkeys(found, found["migrated"]), rel=1e-3)
