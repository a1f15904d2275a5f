"""Runs by itself on another node than the driver, and requeues the job when that node is lost.

`python -m hetero_hvd.slurm.watch_program JOB HOST SECONDS`: the driver on HOST writes to its
standard input again and again, and `end` when the job is over. Silence alone proves nothing: a
job may have been suspended, a network away for a while. So Slurm has to agree.
"""

from __future__ import annotations

import enum
import os
import re
import select
import sys
import time

from hetero_hvd.errors import JobError
from hetero_hvd.slurm.jobs import GOES_ON, RUNNING, job_records
from hetero_hvd.slurm.programs import ask

END = b"end"
MAX_BYTES = 4096

PARTS = 30
"""Silence is waited for in parts: in one during which all processes were stopped, nobody spoke."""

FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 5.0, 60.0
"""Before Slurm is asked again; it doubles."""

LINGER_SECONDS = 900.0
"""After the end of the input nobody can be heard; three times Slurm's usual SlurmdTimeout."""

LOST = frozenset({"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN"})
"""States of a node in which nothing runs on it, as far as Slurm knows; also `*` behind a state."""


class Sign(enum.Enum):
    """What was heard of the driver."""

    END = "the job is over"
    CLOSED = "the input has ended"
    SILENCE = "nothing"


class Verdict(enum.Enum):
    """What Slurm says of the job and the driver's node."""

    OVER = "the job is over, or starts again already"
    LOST = "the node is lost"
    LIVES = "the job lives, or nobody knows"


def listen(descriptor: int, silence_seconds: float) -> Sign:
    """Wait until the driver says that it is over, or says nothing for so long."""
    num_silent = 0
    while num_silent < PARTS:
        if select.select([descriptor], [], [], silence_seconds / PARTS)[0]:
            data = os.read(descriptor, MAX_BYTES)
            if END in data:
                return Sign.END
            if not data:
                return Sign.CLOSED
            num_silent = 0
        else:
            num_silent += 1
    return Sign.SILENCE


def verdict_on(job: str, host: str) -> Verdict:
    """Ask Slurm, which takes a node that has failed out of the job."""
    try:
        parts = job_records(job)
        if not parts or parts[0].state not in GOES_ON:
            return Verdict.OVER
        nodes = ",".join(part.nodes for part in parts if part.nodes)
        is_member = host in ask("scontrol", "show", "hostnames", nodes).split()
        is_lost = not is_member or is_down(ask("scontrol", "show", "node", "--oneliner", host))
    except JobError as error:
        sys.stderr.write(f"{error}\n")
        return Verdict.LIVES
    return Verdict.LOST if is_lost and parts[0].state == RUNNING else Verdict.LIVES


def is_down(about: str) -> bool:
    """Whether nothing runs on a node, by what Slurm says of it."""
    found = re.search(r"\sState=(\S+)", about)
    states = found[1].split("+") if found else []
    return any(one.rstrip("*~#!%$@^-") in LOST or "*" in one for one in states)


def requeue(job: str) -> None:
    """Start the job again; whether that was done, its state says."""
    try:
        ask("scontrol", "requeue", job)
    except JobError as error:
        sys.stderr.write(f"{error}\n")


def watch(descriptor: int, job: str, host: str, silence_seconds: float) -> None:
    """Until the job is over, or is requeued, or nobody can be heard any more and all is well."""
    delay_seconds = FIRST_DELAY_SECONDS
    closed_at_seconds: float | None = None
    verdict = Verdict.LIVES
    while True:
        if closed_at_seconds is None and verdict is Verdict.LIVES:
            sign = listen(descriptor, silence_seconds)
            if sign is Sign.END:
                return
            if sign is Sign.CLOSED:
                closed_at_seconds = time.monotonic()
        verdict = verdict_on(job, host)
        if verdict is Verdict.OVER:
            return
        if verdict is Verdict.LOST:
            requeue(job)
        elif closed_at_seconds is None:
            continue  # its silence is the time until the next question
        elif time.monotonic() > closed_at_seconds + LINGER_SECONDS:
            return
        time.sleep(delay_seconds)
        delay_seconds = min(2 * delay_seconds, MAX_DELAY_SECONDS)


def main() -> int:
    """Watch; gives the exit code."""
    job, host, silence_seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    watch(sys.stdin.fileno(), job, host, silence_seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
