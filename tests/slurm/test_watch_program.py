"""A job is requeued when its driver is silent and Slurm has lost the node, and then only."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from hetero_hvd.slurm import watch_program
from hetero_hvd.slurm.watch_program import END, Sign, Verdict, is_down, listen, verdict_on, watch
from tests.leftovers import wait_until

JOB = "12|12|{}|10:00|{}\n"
NODE = "NodeName=fast1 Arch=x86_64 State={} Reason=State=DOWN\n"


@pytest.mark.parametrize(
    ("written", "is_closed", "sign"),
    [
        (b"end", True, Sign.END),
        (b"\nend", False, Sign.END),
        (b"\n", True, Sign.CLOSED),
        (b"\n", False, Sign.SILENCE),
    ],
    ids=["over", "over, still open", "input ended", "silent"],
)
def test_what_the_driver_says_is_told_from_silence(written, is_closed, sign):
    """The way to a host that has crashed may stay open for ever."""
    reading, writing = os.pipe()
    os.write(writing, written)
    if is_closed:
        os.close(writing)
    assert listen(reading, 0.1) is sign
    os.close(reading)
    if not is_closed:
        os.close(writing)


@pytest.mark.parametrize(
    ("states", "down"),
    [
        ("IDLE ALLOCATED MIXED+DRAIN COMPLETING ALLOCATED+POWER_DOWN FAILING+MIXED FUTURE", False),
        ("DOWN DOWN* DOWN*+DRAIN MIXED* ALLOCATED+NOT_RESPONDING IDLE+POWERED_DOWN DOWN$", True),
    ],
)
def test_the_state_of_a_node_is_read(states, down):
    """One that is drained, or will be switched off when it is free, still does its work."""
    for state in states.split():
        assert is_down(NODE.format(state)) is down, state
    assert not is_down("")


VERDICTS = {
    "all is well": ("RUNNING", "fast[1-2]", "ALLOCATED", Verdict.LIVES),
    "suspended": ("SUSPENDED", "fast[1-2]", "ALLOCATED", Verdict.LIVES),
    "its nodes boot": ("CONFIGURING", "fast[1-2]", "ALLOCATED", Verdict.LIVES),
    "it grows": ("RESIZING", "fast[1-2]", "ALLOCATED", Verdict.LIVES),
    "it gets a signal": ("SIGNALING", "fast[1-2]", "ALLOCATED", Verdict.LIVES),
    "stopped": ("STOPPED", "fast[1-2]", "ALLOCATED", Verdict.LIVES),
    "suspended, and its node is lost": ("SUSPENDED", "fast2", "DOWN*", Verdict.LIVES),
    "Slurm cannot reach the node": ("RUNNING", "fast[1-2]", "ALLOCATED*", Verdict.LOST),
    "the node was taken out": ("RUNNING", "fast2", "DOWN", Verdict.LOST),
    "the node came back without the job": ("RUNNING", "fast2", "IDLE", Verdict.LOST),
    "cancelled": ("CANCELLED", "fast[1-2]", "ALLOCATED", Verdict.OVER),
    "ending": ("COMPLETING", "fast[1-2]", "ALLOCATED", Verdict.OVER),
    "requeued by Slurm": ("PENDING", "", "DOWN", Verdict.OVER),
}


@pytest.mark.parametrize(("state", "nodes", "node", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_slurm_has_to_agree(programs, state, nodes, node, verdict):
    """A job that lives loses nothing by the silence of its driver."""
    (programs / "squeue.jobs").write_text(JOB.format(state, nodes))
    (programs / "scontrol.nodes").write_text(NODE.format(node))
    assert verdict_on("12", "fast1") is verdict


def test_a_forgotten_job_is_over_and_a_dumb_slurm_says_nothing(programs):
    """Without slurmctld nothing could be requeued either."""
    assert verdict_on("99", "fast1") is Verdict.OVER
    (programs / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert verdict_on("12", "fast1") is Verdict.LIVES


def test_what_slurm_refuses_is_tried_again(programs, monkeypatch):
    """Until it is done, or the job has gone another way."""
    monkeypatch.setattr(watch_program, "FIRST_DELAY_SECONDS", 0.01)
    (programs / "squeue.jobs").write_text(JOB.format("RUNNING", "fast2"))
    text = (programs / "scontrol").read_text()
    refusing = """#!/bin/sh
if [ "$1" = requeue ]; then
  echo again >> "$0.refused"
  [ $(wc -l < "$0.refused") -lt 3 ] && { echo busy >&2; exit 1; }
  sed s/RUNNING/PENDING/ "${0%/*}/squeue.jobs" > "$0.new"; mv "$0.new" "${0%/*}/squeue.jobs"
fi
"""
    (programs / "scontrol").write_text(refusing + text.partition("\n")[2])
    reading, writing = os.pipe()
    watch(reading, "12", "fast1", 0.1)
    for descriptor in (reading, writing):
        os.close(descriptor)
    assert (programs / "scontrol.refused").read_text().count("again") == 3
    assert (programs / "scontrol.requeued").read_text() == "12\n"


def test_after_the_end_of_the_input_it_lingers_and_goes(programs, monkeypatch):
    """Another one watches, if the driver lives."""
    monkeypatch.setattr(watch_program, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(watch_program, "LINGER_SECONDS", 0.05)
    (programs / "scontrol.nodes").write_text(NODE.format("ALLOCATED"))
    with Path(os.devnull).open("rb") as closed:
        watch(closed.fileno(), "12", "fast1", 0.1)
    assert not (programs / "scontrol.requeued").exists()


@pytest.mark.process
def test_a_job_that_was_suspended_is_not_requeued(programs):
    """All its processes are stopped for longer than the silence; nobody is even asked."""
    (programs / "squeue").write_text('#!/bin/sh\ntouch "$0.asked"\n')
    words = [sys.executable, "-m", watch_program.__name__, "12", "fast1", "1.5"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write(b"\n")
        wait_until(lambda: not _num_unread(process.stdin), 20, "the program to listen")
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(2.5)
        process.send_signal(signal.SIGCONT)
        threading.Event().wait(0.1)
        process.stdin.write(b"\n")
        wait_until(lambda: not _num_unread(process.stdin), 20, "the program to go on")
        process.stdin.write(END)
    assert process.returncode == 0
    assert not (programs / "squeue.asked").exists()


def _num_unread(pipe):
    """Bytes in a pipe that nobody has read yet."""
    found = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return int.from_bytes(found, sys.byteorder)
