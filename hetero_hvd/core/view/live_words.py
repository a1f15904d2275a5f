"""Events in words."""

from __future__ import annotations

import math

from hetero_hvd.core.diagnosis.stall import stall_in_words
from hetero_hvd.core.significant import ratio_in_words
from hetero_hvd.messages import (
    DRAINED,
    BatchPlan,
    CheckpointFailed,
    Crashed,
    GuardReported,
    OutOfMemory,
    Recovered,
    RunEnded,
    SetAsideReported,
    StalenessEnded,
    StallReported,
    StateDivided,
    StragglerReported,
    TokenFileReported,
    TraceWritten,
    TrialReported,
    WorkerExited,
    WorkerQuarantined,
    WorkersJoined,
    WorkerStarted,
)


def out_of_memory_in_words(event: OutOfMemory) -> str:
    """What did not fit, and what is done instead."""
    size, smaller = event.micro_batch_size, event.next_micro_batch_size
    how = f"goes on with {smaller}" if smaller < size else "tries them once more"
    return f"step {event.step}: {event.worker} has no memory for {size} samples at once and {how}"


def trace_in_words(event: TraceWritten) -> str:
    """What was recorded, and where it is."""
    place = f"{event.path} ({event.num_bytes / 1e6:.1f} MB)" if event.path else "nothing was kept"
    problem = f"; {event.problem}" if event.problem else ""
    last = event.from_step + event.num_steps - 1
    steps = f"steps {event.from_step} to {last}"
    return f"{event.worker} has recorded {steps} ({event.kind}): {place}{problem}"


def event_in_words(event: object) -> str | None:  # noqa: C901, PLR0911, PLR0912 - one line each
    """A line for people; None for what is of no interest by itself."""
    match event:
        case WorkerStarted() if event.num_restarts:
            return f"{event.worker} is started again (restart {event.num_restarts})"
        case WorkersJoined():
            names = ", ".join(map(str, event.workers))
            return f"step {event.applied_steps}: {len(event.workers)} workers train: {names}"
        case BatchPlan():
            pairs = zip(event.workers, event.local_batch_sizes, strict=True)
            shares = ", ".join(f"{worker} {share}" for worker, share in pairs)
            return f"step {event.from_step}: shares {shares}: {event.reason}"
        case StragglerReported():
            return f"step {event.step}: {_of_straggler(event)}"
        case StallReported():
            return stall_in_words(event)
        case Recovered():
            return f"{event.worker} trains again after {event.seconds:.2f} s ({event.cause})"
        case OutOfMemory():
            return out_of_memory_in_words(event)
        case CheckpointFailed() if event.num_failed == 1:  # told once, until one is written again
            return f"step {event.step}: the checkpoint cannot be written: {event.error}"
        case StalenessEnded():
            return f"step {event.step}: staleness bound 0 from now on: {event.reason}"
        case StateDivided():
            return f"step {event.step}: {event.words}"
        case Crashed():
            return f"{event.worker} crashed: {event.error}"
        case WorkerExited():
            return f"{event.worker} {event.words}"
        case WorkerQuarantined(reason=reason) if reason == DRAINED:
            return f"{event.worker} is drained and leaves"
        case WorkerQuarantined():
            return f"{event.worker} is given up: {event.reason}"
        case GuardReported():
            return f"guard: {event.words}"
        case TokenFileReported():
            return event.words
        case SetAsideReported():
            return f"step {event.step}: {event.words}"
        case TrialReported():
            return f"trial: {event.words}"
        case RunEnded():
            return f"ended: {event.reason}"
    return None


def _of_straggler(event: StragglerReported) -> str:
    if not math.isfinite(event.speed_ratio):
        return f"{event.worker}: INCOMPLETE, its timings are missing"
    if not event.is_slow:
        return f"{event.worker} is as fast as it should be again"
    causes = " and ".join(event.causes) or event.cause
    speed = ratio_in_words(event.speed_ratio)
    return f"{event.worker} is slow: {speed} of its own speed ({causes})"
