"""The door to Slurm's programs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hetero_hvd.errors import JobError, TryAgainError

ANSWER_SECONDS = 60.0
"""A busy slurmctld takes its time."""

MAX_WORDS = 200

MAY_PASS = re.compile(
    r"(unable to contact slurm controller|socket timed out|communication connection failure"
    r"|zero bytes were transmitted|connection refused|unexpected message received"
    r"|munge (encode|decode) failed|authentication error|temporarily unable|no route to host)",
    re.IGNORECASE,
)
"""In what a program says where slurmctld or munged is not there for a while, as in a restart."""

OF_THE_USER = ("SQUEUE_", "SCONTROL_", "SLURM_CLUSTERS")
"""Begins of variables that say what the user likes to see: of which jobs, of which cluster."""


def ask(
    *words: str,
    seconds: float | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What one of Slurm's programs prints; bytes that are no UTF-8 are replaced.

    Args:
        words: The program and its arguments.
        seconds: For the answer; None: ANSWER_SECONDS.
        folder: Where it is called; None: where this process is.
        environment: Its variables, of which those in which users say what they like to see are left
            out; None: those of this process.

    Raises:
        JobError: It is not there, or fails.
        TryAgainError: It gives no answer in time, or does not reach slurmctld.
    """
    name = " ".join(words)
    seconds = ANSWER_SECONDS if seconds is None else seconds
    given = os.environ if environment is None else environment
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={k: v for k, v in given.items() if not k.startswith(OF_THE_USER)},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise JobError(
            f"{words[0]}: {error.strerror}: Slurm's programs must be in PATH where --slurm is given"
        ) from error
    except subprocess.TimeoutExpired as error:
        said = f"{name}: no answer in {seconds:g} s; try again later"
        raise TryAgainError(said) from error
    if done.returncode:
        why = " ".join(done.stderr.split())[:MAX_WORDS] or f"exit code {done.returncode}"
        kind = TryAgainError if MAY_PASS.search(done.stderr) else JobError
        raise kind(f"{name}: {why}")
    return done.stdout
