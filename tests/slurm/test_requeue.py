"""Whether a job is started again is found out before it begins, and once more at its end."""

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.requeue import check_requeue, requeue_if_running

JOB = Allocation(job_id="12", label="10_3", nodes=())
ABOUT = "JobId=12 JobName=a b JobState={} Requeue={} Restarts=0 BatchFlag={} ExitCode=0:0\n"


@pytest.mark.parametrize(
    ("requeue", "batch", "words"),
    [
        (1, 1, ""),
        (1, 2, ""),
        (0, 1, "add the line '#SBATCH --requeue'"),
        (1, 0, "submit it with sbatch, or leave --requeue out"),
    ],
)
def test_a_job_that_would_not_start_again_is_refused(programs, requeue, batch, words):
    """Before it has trained for a day."""
    (programs / "scontrol.job").write_text(ABOUT.format("RUNNING", requeue, batch))
    if words:
        with pytest.raises(UserError, match=words) as error:
            check_requeue(JOB)
        assert "\n" not in str(error.value)
    else:
        check_requeue(JOB)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "CANCELLED", "PENDING"])
def test_slurm_is_asked_only_for_what_it_has_not_decided(programs, state):
    """It requeues what it preempts; and who cancels a job does not want it again."""
    other = ABOUT.format("RUNNING", 1, 1)  # a second component
    (programs / "scontrol.job").write_text(ABOUT.format(state, 1, 1) + other)
    words = requeue_if_running(JOB)
    asked = programs / "scontrol.requeued"
    if state == "RUNNING":
        assert asked.read_text() == "12\n"
        assert words == "job 10_3 is requeued"
    else:
        assert not asked.exists()
        assert state in words
