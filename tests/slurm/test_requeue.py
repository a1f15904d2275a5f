"""Whether a job is started again is found out before it begins, and once more at its end."""

import pytest

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm import requeue
from hetero_hvd.slurm.allocation import Allocation
from hetero_hvd.slurm.requeue import Starts, check_requeue, requeue_if_running
from tests.slurm.conftest import ABOUT

JOB = Allocation(number=10, label="10_3", nodes=())


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
    (programs / "scontrol.job").write_text(ABOUT.format(requeue=requeue, batch=batch))
    if words:
        with pytest.raises(UserError, match=words) as error:
            check_requeue(JOB)
        assert "\n" not in str(error.value)
    else:
        check_requeue(JOB)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "CANCELLED", "PENDING"])
def test_slurm_is_asked_only_for_what_it_has_not_decided(programs, state):
    """It requeues what it preempts; and who cancels a job does not want it again."""
    others = "12|10_2|RUNNING|10:00|slow1\n11|10_4|RUNNING|10:00|slow1\n"
    (programs / "squeue.jobs").write_text(f"10|10_3|{state}|10:00|fast1\n{others}")
    words = requeue_if_running(JOB)
    asked = programs / "scontrol.requeued"
    if state == "RUNNING":
        assert asked.read_text() == "10_3\n"
        assert words == "job 10_3 is requeued"
    else:
        assert not asked.exists()
        assert state in words


def test_slurm_is_asked_again_where_it_refuses(programs, monkeypatch):
    """As long as the job may run; then what it says is the error."""
    monkeypatch.setattr(requeue, "DELAYS_SECONDS", (0.01,) * 3)
    (programs / "squeue.jobs").write_text("10|10_3|RUNNING|10:00|fast1\n")
    refusing = '[ $1 = show ] || echo again >> "$0.refused"; echo busy >&2; exit 1'
    (programs / "scontrol").write_text(f"#!/bin/sh\n{refusing}\n")
    with pytest.raises(JobError, match=r"^scontrol requeue 10_3: busy$"):
        requeue_if_running(JOB)
    assert (programs / "scontrol.refused").read_text().count("again") == 4
    at_last = f'[ $(wc -l < "$0.refused") = 6 ] && exit 0; {refusing}'
    (programs / "scontrol").write_text(f"#!/bin/sh\n{at_last}\n")
    assert requeue_if_running(JOB) == "job 10_3 is requeued"


@pytest.mark.parametrize(("restarts", "words"), [(1, "is requeued"), (0, "Slurm decides")])
def test_slurm_may_do_what_it_is_told_without_an_answer(programs, monkeypatch, restarts, words):
    """Under load; or somebody has cancelled the job meanwhile, which is told as such."""
    monkeypatch.setattr(requeue, "DELAYS_SECONDS", (0.01,) * 3)
    job = ABOUT.format(requeue=1, batch=1)
    (programs / "scontrol.job").write_text(job)
    (programs / "after").write_text(job.replace("Restarts=0", f"Restarts={restarts}"))
    (programs / "ended").write_text("10|10_3|COMPLETING|10:00|fast1\n")
    (programs / "squeue.jobs").write_text("10|10_3|RUNNING|10:00|fast1\n")
    done = 'cp "${0%/*}/after" "$0.job"; cp "${0%/*}/ended" "${0%/*}/squeue.jobs"'
    silent = f'#!/bin/sh\n[ $1 = show ] && exec cat "$0.job"\n{done}; echo late >&2; exit 1\n'
    (programs / "scontrol").write_text(silent)
    assert words in requeue_if_running(JOB)


STARTS = {
    "cancelled in its first start": ("Restarts=0", "Restarts=0", False),
    "requeued in its first start": ("Restarts=0", "Restarts=1", True),
    "cancelled in its second start": ("Restarts=1", "Restarts=1", False),
    "requeued in its tenth start": ("Restarts=9", "Restarts=10", True),
    "not told": ("", "", False),
}


@pytest.mark.parametrize("inherited", [None, "0", "1", "99"])
@pytest.mark.parametrize("case", STARTS)
def test_slurm_counts_the_next_start_before_it_begins(programs, monkeypatch, case, inherited):
    """The state is COMPLETING in all of these; the variable may be that of another job."""
    before, after, expected = STARTS[case]
    if inherited is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", inherited)

    def tell(told):
        text = f"JobId=12 JobName=Restarts=7 Requeue=1 {told} BatchFlag=1\nJobId=13 Restarts=99\n"
        (programs / "scontrol.job").write_text(text)

    tell(before)
    starts = Starts(JOB)
    tell(after)
    assert starts.is_another_decided() is expected
