"""Which failures another start may mend, and when it is tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from hetero_hvd.core.backoff import doubled

FailureCause = Literal[
    "node_lost",
    "device_failed",
    "preempted",
    "foreign_memory",
    "out_of_memory",
    "script_error",
    "not_kept",
    "not_started",
    "time_limit",
]
FAILURE_CAUSES: tuple[FailureCause, ...] = get_args(FailureCause)
CAUSE_IN_WORDS: Mapping[FailureCause, str] = {
    "script_error": "script error; `hetero-hvd queue logs {job}` has it",
    "not_kept": "its last checkpoint could not be written; `hetero-hvd queue logs {job}` says why",
    "not_started": "its interpreter cannot be started there, or has no hetero_hvd any more",
}
"""Where the name alone would not do."""

HEALING: frozenset[FailureCause] = frozenset(
    {"node_lost", "device_failed", "preempted", "foreign_memory"}
)
"""What lies outside of the job. A script that fails does so again, and so does one whose own
smallest micro-batch does not fit; memory that a stranger fills is free again some time, a disk that
is full when somebody makes room: the job would train its last minutes in vain once more."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 10.0, 1800.0


def retry_after_seconds(cause: FailureCause, num_failures: int, retries: int) -> float | None:
    """How long to wait before a job is started again.

    Args:
        cause: Of this failure.
        num_failures: Failures that can heal so far, without this one, >= 0.
        retries: So many starts were granted.

    Returns:
        Seconds, doubled from failure to failure; None: it is not tried again.
    """
    if cause not in HEALING or num_failures >= retries:
        return None
    return doubled(FIRST_RETRY_SECONDS, num_failures, MAX_RETRY_SECONDS)
