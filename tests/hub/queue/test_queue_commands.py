"""Jobs that are any command, and arrays of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.queue import queue
from hetero_hvd.errors import TryAgainError
from hetero_hvd.probes.kernel.device_lease import take_lease
from tests.hub.queue.queue_rig import until
from tests.kit.checkout import variables

NOTEBOOK = 'trap "echo saved; exit 0" TERM; echo begun; sleep 100 & wait'
ELEMENT = 'echo "I am $HETERO_HVD_ARRAY_INDEX of $PWD"; sleep 0.2'


def submitted(hub, *words):
    """What `hetero-hvd submit` says."""
    return called(hub, "submit", *words)


def called(hub, *words):
    """What a command says."""
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", *words],
        cwd=hub.folder / "tree",
        env=variables(HETERO_HVD_QUEUE=str(hub.socket)),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_commands_and_arrays(hub):
    """Each has its device for itself, a high job does not shrink it; what is idle is ended."""
    notebook = ("--devices", "1", "--needs", "node==alpha", "--idle-limit", "1s")
    assert submitted(hub, *notebook, "--", "sh", "-c", NOTEBOOK) == "job 1\n"
    hub.wait_for_text(1, "begun")
    holder = take_lease("slot alpha:0", "somebody else")
    assert str(holder).startswith("job-1 (process ")
    array = ("--devices", "1", "--array", "4-6%1", "--priority", "high")
    assert submitted(hub, *array, "--", "sh", "-c", ELEMENT) == "jobs 2-4\n"
    assert hub.job(1)["devices"] == ["alpha:0"]
    assert [hub.job(number)["state"] for number in (2, 3, 4)] == ["running", "waiting", "waiting"]
    assert hub.job(3)["why"] == "3 waits: 1 elements of 2 run, as many as may at a time"
    later = ("--devices", "1", "--after", "2-4", "--time-limit", "1s", "--retries", "0")
    assert submitted(hub, *later, "--", "sh", "-c", "sleep 100").startswith("job 5\n5 waits")
    for number, index in ((2, 4), (3, 5), (4, 6)):
        assert hub.wait_for_end(number) == f"{number} has ended: it is done"
        tree = hub.folder / "hub" / "queue" / "jobs" / str(number) / "tree"
        assert hub.log_of(number) == f"I am {index} of {tree}\n"
    assert hub.wait_for_end(1).startswith("1 has ended: its devices did nothing for ")
    until(lambda: "saved" in hub.log_of(1), lambda: hub.log_of(1))
    assert hub.wait_for_end(5) == "5 has ended: its time limit of 1 s is over"
    until(lambda: not hub.runners(), lambda: hub.log_of(5))
    lease = take_lease("slot alpha:0", "somebody else")
    assert isinstance(lease, int)
    os.close(lease)
    assert submitted(hub, "--devices", "1", "--", "sh", "-c", "exit 3") == "job 6\n"
    assert hub.wait_for_end(6).startswith("6 has ended: it failed: script error; ")
    assert submitted(hub, "--devices", "1", "--array", "1-3", "--", "sleep", "99") == "jobs 7-9\n"
    assert called(hub, "queue", "cancel", "5,7-9").splitlines() == [
        "5 has ended: its time limit of 1 s is over",
        *(f"{number} has ended: it was cancelled" for number in (7, 8, 9)),
    ]
    wrong = {
        ("--array", "9-1"): "hetero-hvd: --array: found '9-1', must be numbers such as 3, ",
        ("--array", "1-9%0"): "hetero-hvd: --array: behind %: found '0', must be ",
        ("--devices", "1", "--max", "2"): "hetero-hvd: --devices: takes the place of --min and ",
        ("--devices", "2"): "hetero-hvd: submit: a command on several devices needs them on one ",
    }
    for words, line in wrong.items():
        said = submitted(hub, *words, "--", "sh")
        assert said.startswith(line)
        assert said.count("\n") == 1


AWAY = TryAgainError("no queue answers")
LOG = "one\ntwo\n"
FOLLOWED = {
    "a hub that comes back": (["-f", "1"], [4, AWAY, AWAY, 8, 8], 0, LOG, 1),
    "a hub that goes twice": (["-f", "1"], [4, AWAY, 8, AWAY, 8], 0, LOG, 2),
    "a job that has printed nothing": (["-f", "1"], [0, AWAY, 8, 8], 0, LOG, 1),
    "a hub that was never there": (["-f", "1"], [AWAY], 75, "", 1),
    "nobody follows": (["1"], [4, AWAY], 75, "one\n", 1),
}
"""Arguments; how much of the log there is each time that the queue is asked; what comes of it."""


@pytest.mark.parametrize("case", FOLLOWED)
def test_who_follows_a_log_waits_for_the_next_hub(monkeypatch, capfd, case):
    """What was printed is not printed again; that the hub is away is told once."""
    words, answers, code, output, num_told = FOLLOWED[case]
    asked = iter(answers)
    left = len(answers)

    def ordered(*_, begin, **__):
        nonlocal left
        left -= 1
        if (end := next(asked)) is AWAY:
            raise AWAY
        return {"text": LOG[begin:end], "next": end, "is_over": not left}

    monkeypatch.setattr(queue, "_ordered", ordered)
    for seconds in ("AWAY_SECONDS", "FOLLOW_SECONDS"):
        monkeypatch.setattr(queue, seconds, 0.001)
    assert main(["queue", "logs", *words]) == code
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("no queue answers")) == (output, num_told)
    assert not left
