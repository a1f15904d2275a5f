"""Agents' jobs that fail are told, with their log: a line for each pool, once."""

import pytest

from hetero_hvd.errors import JobError
from hetero_hvd.slurm import agent_failures
from hetero_hvd.slurm.agent_failures import AgentFailures, failed_tasks
from hetero_hvd.slurm.agent_jobs import AgentJobs, AgentTask
from hetero_hvd.slurm.jobs import COMPLETING, ENDED, FAILED, GOES_ON
from tests.leftovers import wait_until

SQUEUE = """#!/bin/sh
case "$*" in *--jobs=1,2*) cat "$0.tasks" ;; *) cat "$0.answer" ;; esac
"""


@pytest.fixture
def failures(programs, arrays, tmp_path):
    """Of two pools, jobs 1 and 2; all tasks wait, and the log is one that failing ones write."""
    (programs / "squeue").write_text(SQUEUE)
    log = tmp_path / "a log.txt"
    log.write_text("first\nexec: /nowhere/python: not found\n\n")
    (programs / "scontrol.job").write_text(f"JobId=9 ExitCode=127:0\n   StdOut={log}\n   Power=\n")
    jobs = AgentJobs(arrays, {"PATH": f"{programs}:/usr/bin:/bin"})
    assert jobs.submit() == {"1": "cpu", "2": "gpu"}
    return AgentFailures(jobs)


def tell(programs, *lines):
    """What Slurm has: number of the array, of the task, state."""
    (programs / "squeue.tasks").write_text("".join(f"{line}\n" for line in lines))


def test_a_pool_that_fails_is_told_once_with_its_log(failures, programs, tmp_path):
    """What has failed, with which code, where its log is and what that says last."""
    tell(programs, "1 1 PENDING", "2 1 PENDING", "2 2 PENDING")
    failures.look()
    assert failures.news() == []
    tell(programs, "1 1 RUNNING", "2 1 FAILED", "2 2 FAILED", "7 1 FAILED")
    failures.look()
    failures.look()
    (line,) = failures.news()
    assert line == (
        "agents gpu: 2 of 2 have failed and none runs; job 2_1 is FAILED, exit code 127; its log "
        f"{tmp_path}/a log.txt ends with: exec: /nowhere/python: not found"
    )
    tell(programs, "1 1 OUT_OF_MEMORY", "2 1 FAILED")
    failures.look()
    assert [line.partition(";")[0] for line in failures.news()] == [
        "agents cpu: 1 of 1 have failed and none runs"
    ]


UNSEEN = {
    "no such folder": ("ExitCode=0:53\n   StdOut=/none/x\n", ", signal 53; its log /none/x cannot"),
    "an empty log": ("ExitCode=1:0\n   StdOut=/dev/null\n", "; its log /dev/null ends with: noth"),
    "no log": ("ExitCode=1:0\n", "is FAILED, exit code 1"),
    "nothing": ("", "is FAILED"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_what_cannot_be_seen_is_left_out(failures, programs, case):
    """The line is there all the same."""
    about, expected = UNSEEN[case]
    (programs / "scontrol.job").write_text(about)
    tell(programs, "1 N/A FAILED")
    failures.look()
    (line,) = failures.news()
    assert expected in line


POOLS = {
    "all have failed": (["FAILED", "TIMEOUT"], 2),
    "one has failed, the others wait": (["FAILED", "PENDING"], 1),
    "one runs": (["FAILED", "RUNNING"], 0),
    "one is suspended": (["FAILED", "SUSPENDED"], 0),
    "one is ending": (["FAILED", "COMPLETING"], 0),
    "all were idle": (["COMPLETED", "COMPLETED"], 0),
    "one was idle": (["COMPLETED", "FAILED"], 1),
    "all were cancelled": (["CANCELLED", "CANCELLED"], 0),
    "all were preempted": (["PREEMPTED", "PENDING"], 0),
    "all wait": (["PENDING", "REQUEUE_HOLD"], 0),
    "none is known": ([], 0),
}


@pytest.mark.parametrize("case", POOLS)
def test_only_what_fails_is_told(case):
    """Not who has ended in order, and not while others of the pool may train."""
    states, expected = POOLS[case]
    tasks = [AgentTask("1", str(number), state, "a") for number, state in enumerate(states)]
    assert len(failed_tasks(tasks)) == expected


def test_a_state_of_failure_is_one_of_the_end():
    """Those that are none are somebody's will."""
    assert FAILED < ENDED
    assert {"CANCELLED", "COMPLETED", "PREEMPTED", "STAGE_OUT"} == ENDED - FAILED
    assert not ENDED & (GOES_ON | {COMPLETING})


def test_a_slurm_that_does_not_answer_is_asked_again(failures, programs, monkeypatch):
    """In a thread, which ends with the driver."""
    monkeypatch.setattr(agent_failures, "FIRST_SECONDS", 0.01)
    (programs / "squeue").write_text('#!/bin/sh\ntouch "$0.asked"; exit 1\n')
    with pytest.raises(JobError):
        failures.look()
    failures.follow()
    wait_until((programs / "squeue.asked").exists, 10, "a question")
    (programs / "squeue").write_text(SQUEUE)
    tell(programs, "1 1 FAILED")
    found = []
    wait_until(lambda: found.extend(failures.news()) or found, 10, "the news")
    failures.close()
    assert found[0].startswith("agents cpu: 1 of 1 have failed")
