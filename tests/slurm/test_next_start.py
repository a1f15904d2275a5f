"""Whether a job that ends is started again."""

import pytest

from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.next_start import starts_again

JOB = Allocation(number=12, label="10_3", nodes=())
CASES = {
    "cancelled in its first start": ("Restarts=0", {}, False),
    "requeued in its first start": ("Restarts=1", {}, True),
    "cancelled in its second start": ("Restarts=1", {"SLURM_RESTART_COUNT": "1"}, False),
    "requeued in its tenth start": ("Restarts=10", {"SLURM_RESTART_COUNT": "9"}, True),
    "not told": ("", {}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_slurm_counts_the_next_start_before_it_begins(programs, case):
    """The state is COMPLETING in all of these."""
    told, environment, expected = CASES[case]
    text = f"JobId=12 JobState=COMPLETING Requeue=1 {told} BatchFlag=1\nJobId=13 Restarts=99\n"
    (programs / "scontrol.job").write_text(text)
    assert starts_again(JOB, environment) is expected
