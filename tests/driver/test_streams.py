"""A job refuses a data set that cannot be read from any position, whoever trains."""

from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("streaming.py"))

pytest.importorskip("lightning")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

WAYS = {
    "plain training": "the training loader",
    "Lightning's validation in fit": "val_dataloaders",
    "Hugging Face's train": "train_dataset",
}


JOB = "Lightning's validation in fit"
"""Lightning takes an error through hands of its own; what refuses is tested without a job, too."""


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.matrix] * (way != JOB)) for way in WAYS]
)
def test_a_stream_ends_the_job_in_one_line(start_job, way):
    """With exit code 2, before a step; nobody is started again, and nothing has a traceback."""
    job = start_job(names=("alpha",), command=(SCRIPT, way))
    assert job.wait(250) == 2, job.output
    words = f"{WAYS[way]}: Iterating is an IterableDataset, which cannot be read from any position"
    assert any(words in line for line in job.output)
    assert words in job.summary()["reason"]
    assert job.summary()["steps"] == 0
    assert not any("Traceback" in line or "again" in line for line in job.output)
