"""A machine of its own whose only worker is drained: it is heard of over ssh until it is well."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from tests.fake_nvml.library import build, environment
from tests.faults.conftest import assert_exact
from tests.kit.checkout import python_path
from tests.kit.fault_job import FaultJob

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(180)]

EPOCHS = 60
GUARD = {"temperature": 87, "for_seconds": 1, "return_seconds": 1, "throttled": "off"}


@pytest.mark.matrix
def test_a_hot_gpu_of_another_machine(virtual_cluster, tmp_path):
    """Nobody else tells of its temperature; each sample is used once."""
    host = virtual_cluster({"alpha": 100, "beta": 50})["alpha"]
    gpu, library, work = (tmp_path / name for name in ("gpu", "nvml", "work"))
    for folder in (gpu, library, work):
        folder.mkdir()
    own = environment(build(library), told=gpu)
    new = [f"{name}={value}" for name, value in own.items() if value != os.environ.get(name)]
    new += [f"PYTHONPATH={python_path()}"]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env {shlex.join(new)} {sys.executable} "$@"\n')
    python.chmod(0o755)
    nodes = [
        host.node(slots=1, devices=[0], directory=str(work), python=str(python)),
        {"name": "beta", "slots": 1, "devices": []},
    ]
    job = FaultJob(
        work,
        nodes,
        settings={"guard": GUARD, "max_restarts": 0},
        epochs=EPOCHS,
        num_samples=256,
        batch_size=64,
        step_seconds=0.01,
        patient_from=10,
        patient_until="done",
    )
    try:
        job.wait_for("2 workers train together", 60)
        (gpu / "temperature").write_text("91")
        job.wait_for("guard: GPU 0 of alpha is at 91 °C", 60)
        job.wait_for("alpha:0 has left", 60)
        (gpu / "temperature").write_text("60")
        job.wait_for("guard: GPU 0 of alpha is well again: alpha:0 may come back", 60)
        job.wait_for("2 workers train together", 60, times=2)
        (work / "done").touch()
        assert job.wait() == 0, job.console
    finally:
        job.close()
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "beta:0"))
