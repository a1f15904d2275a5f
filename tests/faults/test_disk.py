"""A disk that fills up under a run."""

import os
import re
import subprocess

import pytest

from tests.test_disk import fill

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_costs_what_is_written_there_and_nothing_else(start, tmp_path):
    """Records, fingerprints and checkpoints fail and say so; the training is exact."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "disk", disk], check=True)
    try:
        settings = {"checkpoint_seconds": 0.2, "fingerprint_steps": 1, "reproducible": True}
        job = start(
            epochs=40,
            ballast=1,
            settings={**settings, "grain": 8},
            nodes=("alpha", "beta"),
            arguments=("--output", "disk/out"),
        )
        job.wait_for_step(10, 90)
        fill(disk)
        assert job.wait() == 0, job.console
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert len({result["state"] for result in job.results()}) == 1
    assert [result["applied_steps"] for result in job.results()] == [160, 160]
    assert "Traceback" not in job.console
    for name in ("out/timings.jsonl", "out/run.sqlite", "out/fingerprints.jsonl"):
        assert job.console.count(f"{name} cannot be written") == 1, job.console
        assert f"{name}: " in job.console  # how much is missing
    assert re.search(r"the checkpoint of step .* cannot be written: .*1 failed", job.console)
