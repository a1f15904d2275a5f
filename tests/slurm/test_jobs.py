"""What Slurm says of a job is read as it is, for every kind of job."""

import pytest

from hetero_hvd.errors import JobError
from hetero_hvd.slurm.jobs import JobRecord, job_records, state_of

SAID = """\
40|40|RUNNING|1-00:00:00|gpu[1-2]
42|41+1|RUNNING|9:00|slow1
41|41+0|SUSPENDED|10:00|fast1
50|50_7|COMPLETED|0:00|
"""


@pytest.fixture(autouse=True)
def said(programs):
    """Slurm knows of four jobs."""
    (programs / "squeue.jobs").write_text(SAID)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("40", [("40", "40", None, "gpu[1-2]")]),
        ("41", [("41", "41", 0, "fast1"), ("42", "41", 1, "slow1")]),
        ("50_7", [("50", "50_7", None, "")]),
        ("60", []),
    ],
)
def test_a_job_is_known_by_one_reference(asked, found):
    """Components are in their order; a task of an array is itself alone."""
    records = job_records(asked)
    assert [(r.number, r.reference, r.group, r.nodes) for r in records] == found


@pytest.mark.parametrize(
    ("asked", "state"),
    [("40", "RUNNING"), ("41", "SUSPENDED"), ("50_7", "COMPLETED"), ("60", "")],
)
def test_the_state_is_that_of_the_first_component(asked, state):
    """A job that Slurm has forgotten has none."""
    assert state_of(asked) == state


def test_a_job_that_is_forgotten_is_no_error(programs):
    """Of a single one squeue makes an error; any other error is one here, too."""
    said = "slurm_load_jobs error: Invalid job id specified"
    (programs / "squeue").write_text(f"#!/bin/sh\necho {said} >&2; exit 1\n")
    assert job_records("99") == []
    (programs / "squeue").write_text("#!/bin/sh\necho Unable to contact >&2; exit 1\n")
    with pytest.raises(JobError, match="Unable to contact"):
        job_records("99")


def test_times_are_given_as_they_are():
    """Whoever needs them reads them."""
    assert job_records("40") == [
        JobRecord(
            number="40",
            label="40",
            state="RUNNING",
            time_left="1-00:00:00",
            nodes="gpu[1-2]",
        )
    ]
