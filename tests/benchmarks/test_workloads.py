"""What the benchmarks run in processes of their own runs: they reach into the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
GRAINS = {"grains": {"reproducible": True, "grain": 8}}
JOBS = {
    "profile": {"batch_size": 64, "num_steps": 10},
    "grains": {
        "digits": {"batch_size": 16, "num_samples": 32, "num_rounds": 1, "variants": GRAINS},
    },
}


@pytest.mark.process
@pytest.mark.parametrize("name", JOBS)
def test_a_workload_leaves_its_result(name, tmp_path):
    """On one worker."""
    (tmp_path / "job.json").write_text(json.dumps(JOBS[name]))
    environment = os.environ | {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{CHECKOUT / 'scripts'}"}
    command = [sys.executable, "-m", f"benchmarks.workloads.{name}", str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=100)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result
