"""Two models in one loop: a worker dies in a step of either, and comes back. Real workers."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("two_models.py")
STEPS = 5
"""In an epoch; the last has one sample, rank 0's: the others have no part of it."""

DEATHS = [
    ("beta:0", "CRITIC", 7),
    pytest.param(("alpha:0", "LEAD", 9), marks=pytest.mark.matrix),
    pytest.param(("beta:0", "LEAD", 7), marks=pytest.mark.matrix),
]


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_worker_dies_between_two_steps_on_a_batch(start_job, death):
    """Each sample counts once for each model and epoch on all three, also on who came back."""
    job = start_job(command=(str(SCRIPT), *map(str, death)), balance=False)
    code = job.wait(120)
    said = "\n".join(job.output)
    assert code == 0, said
    assert (job.folder / "died").exists(), "the fault has not fired"
    files = sorted(job.folder.glob("result-*.json"))
    assert len(files) == 3, said
    results = [json.loads(file.read_text()) for file in files]
    (epochs,) = results[0]["used"][0]
    expected = {"steps": [STEPS * epochs] * 2, "used": [[epochs], [epochs]]}
    assert results == [expected] * 3
    assert f"{death[0]}: restart 1" in said
    assert job.summary()["replicas_equal"]
