"""A disk that fills up under a run."""

import re

import pytest

from hetero_hvd.exit_codes import EXIT_NOT_KEPT
from tests.kit.small_disk import fill, make_room, missing_for_a_disk, small_disk

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


FILES = ("out/timings.jsonl", "out/run.sqlite", "out/fingerprints.jsonl")
ENDS = [
    pytest.param(True, EXIT_NOT_KEPT, id="to the end"),
    pytest.param(False, 0, marks=pytest.mark.matrix, id="for a time"),
]


@pytest.mark.skipif(missing_for_a_disk() is not None, reason="only root may mount a small disk")
@pytest.mark.parametrize(("stays_full", "code"), ENDS)
def test_a_full_disk_costs_what_is_written_there_and_nothing_else(
    start, tmp_path, stays_full, code
):
    """Records, fingerprints and checkpoints fail and say so; the training is exact.

    A job whose last checkpoint is missing does not end as if it were there.
    """
    with small_disk(tmp_path / "disk", kilobytes=8192) as disk:
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
        if not stays_full:
            for words in ("and the next one is tried", *(f"{name} cannot" for name in FILES)):
                job.wait_for(words, 60)
            make_room(disk)
        assert job.wait() == code, job.console
    assert len({result["state"] for result in job.results()}) == 1
    assert [result["applied_steps"] for result in job.results()] == [160, 160]
    assert "Traceback" not in job.console
    for name in FILES:
        assert job.console.count(f"{name} cannot be written") == 1, job.console
        assert f"{name}: " in job.console  # how much is missing
    step, full = r"of step \d+", "No space left on device: .* are needed, .* are free in "
    assert len(re.findall(f"the checkpoint {step} cannot be written: .*{full}", job.console)) == 1
    (ended,) = re.findall(r"ended: the training is finished.*", job.console)
    missing = f"; its last checkpoint, of step 160, is missing: .*/step-000000000160-.*: {full}"
    assert bool(re.search(missing, ended)) is stays_full, ended
    assert bool(re.search(f"the checkpoint {step} is written; ", job.console)) is not stays_full
