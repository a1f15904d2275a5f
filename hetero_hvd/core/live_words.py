"""The live view in words: events, and who is slow and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hetero_hvd.messages import (
    BatchPlan,
    Crashed,
    Event,
    OutOfMemory,
    Recovered,
    RunEnded,
    StalenessEnded,
    StragglerReported,
    WorkerExited,
    WorkerQuarantined,
    WorkersJoined,
    WorkerStarted,
)

PHASES = ("data_wait", "transfer", "forward", "backward", "comm_wait", "optimizer")
"""In the order in which a step goes through them."""

OWN_PHASES = tuple(name for name in PHASES if name != "comm_wait")
SLOWEST_RATIO = 0.9
"""A speed below this part of the fastest one's is worth a sentence."""

BALANCED_RATIO = 0.1
"""Workers whose own times in a step differ by no more are said to finish together."""

CAUSES = {
    "input": "it waits for its data",
    "transfer": "copying to its device takes long",
    "compute": "its forward and backward passes take long",
}


class Timed(Protocol):
    """What a sentence needs to know about a worker; see `core.live.WorkerView`."""

    name: str
    state: str
    share: int | None
    phases: dict[str, float]
    speed_ratio: float | None
    slow_since_step: int | None
    slow_cause: str | None
    expected_speed_ratio: float | None


def out_of_memory_in_words(event: OutOfMemory) -> str:
    """What did not fit, and what is done instead."""
    size, smaller = event.micro_batch_size, event.next_micro_batch_size
    how = f"goes on with {smaller}" if smaller < size else "tries them once more"
    return f"step {event.step}: {event.worker} has no memory for {size} samples at once and {how}"


def event_in_words(event: Event) -> str | None:  # noqa: C901, PLR0911 - one line for each kind
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
            how = "is slower than it should be" if event.is_slow else "is well again"
            return f"step {event.step}: {event.worker} {how}"
        case Recovered():
            return f"{event.worker} trains again after {event.seconds:.2f} s ({event.cause})"
        case OutOfMemory():
            return out_of_memory_in_words(event)
        case StalenessEnded():
            return f"step {event.step}: staleness bound 0 from now on: {event.reason}"
        case Crashed():
            return f"{event.worker} crashed: {event.error}"
        case WorkerExited():
            return f"{event.worker} {event.words}"
        case WorkerQuarantined():
            return f"{event.worker} is given up: {event.reason}"
        case RunEnded():
            return f"ended: {event.reason}"
    return None


def verdict_of(workers: Sequence[Timed]) -> list[str]:
    """Sentences about who is slow and why; abstains where nothing is measured.

    A worker that is slower than *it* should be comes first. A machine that is merely slower than
    the others is not ill, and the sentence says so.
    """
    ill = [worker for worker in workers if worker.slow_since_step is not None]
    if ill:
        return [_ill(worker) for worker in ill]
    timed = [w for w in workers if w.state in ("training", "finished", "ended") and w.speed_ratio]
    if not timed:
        return ["Not measured yet."]
    slowest = min(timed, key=lambda worker: worker.speed_ratio or 0.0)
    fastest = max(timed, key=lambda worker: worker.speed_ratio or 0.0)
    if slowest is fastest or (slowest.speed_ratio or 0.0) >= SLOWEST_RATIO:
        return ["No worker is slow."]
    return [_slowest(slowest, fastest, timed)]


def _ill(worker: Timed) -> str:
    ratio = worker.expected_speed_ratio
    speed = f", at {ratio:.2f} of its expected speed" if ratio is not None else ""
    cause = CAUSES.get(worker.slow_cause or "", "the cause is not known")
    return (
        f"{worker.name} is slower than it should be since step {worker.slow_since_step}{speed}: "
        f"{cause}."
    )


def _slowest(slowest: Timed, fastest: Timed, timed: Sequence[Timed]) -> str:
    own = {name: slowest.phases[name] for name in OWN_PHASES if name in slowest.phases}
    name = max(own, key=lambda phase: own[phase])
    part = own[name] / sum(own.values())
    busy = [sum(w.phases.get(phase, 0.0) for phase in OWN_PHASES) for w in timed]
    spread = 1.0 - min(busy) / max(busy)
    share = sum(w.share or 0 for w in timed)
    outcome = (
        f"its share of {slowest.share} of {share} samples makes up for it"
        if spread <= BALANCED_RATIO
        else f"the shares do not fit yet: own times differ by {spread:.0%}"
    )
    return (
        f"{slowest.name} is the slowest: {slowest.speed_ratio:.2f} of {fastest.name}'s speed, "
        f"with {part:.0%} of its own time in {name.replace('_', ' ')}; {outcome}."
    )
