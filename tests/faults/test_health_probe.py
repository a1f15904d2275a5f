"""A device that computes wrongly costs its own worker, before it takes part in anything."""

import json

import pytest

from tests.kit.fault_job import SCRIPT

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

EPOCHS = 8
FAULTY = f"""
import os, runpy, sys, torch
if os.environ.get("WRONG"):
    ones = torch.ones
    torch.ones = lambda *size, **rest: ones(*size, **rest) * float(os.environ["WRONG"])
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def test_the_others_train_without_it(start, tmp_path):
    """It is told why, never admitted, and given up like a slot that keeps dying."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    nodes = [{"name": name, "slots": 1, "devices": []} for name in ("alpha", "beta", "gamma")]
    nodes[1]["env"] = {"WRONG": "nan"}
    told = {"folder": str(tmp_path), "epochs": EPOCHS, "num_samples": 256, "batch_size": 64}
    job = start(nodes=nodes, epochs=EPOCHS, command=("faulty.py", json.dumps(told)))
    job.wait_for("beta:0 is given up after 0 restarts")
    assert job.wait() == 0, job.console
    assert "cpu computes wrongly: a product of ones is not what it must be" in job.console
    assert "3 workers train together" not in job.console
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "gamma:0"))
