"""The door to Slurm's programs."""

from __future__ import annotations

import subprocess

from hetero_hvd.errors import JobError

ANSWER_SECONDS = 60.0
"""A busy slurmctld takes its time."""

MAX_WORDS = 200


def ask(*words: str) -> str:
    """What one of Slurm's programs prints.

    Raises:
        JobError: It is not there, fails, or gives no answer in time.
    """
    name = " ".join(words)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except OSError as error:
        raise JobError(
            f"{words[0]}: {error.strerror}: Slurm's programs must be in PATH where --slurm is given"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{name}: no answer in {ANSWER_SECONDS:g} s; try again later") from error
    if done.returncode:
        why = " ".join(done.stderr.split())[:MAX_WORDS] or f"exit code {done.returncode}"
        raise JobError(f"{name}: {why}")
    return done.stdout
