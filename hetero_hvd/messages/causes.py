"""Why a worker is slow, what binds a run, and what was judged of it.

The tables here are the only ones: judge, texts and metrics follow them. A further cause is an entry
and a column of `StepTiming` that measures it. A judgement is made once, by `core.diagnosis.judge`,
and only shown by everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from hetero_hvd.messages.identity import Message, WorkerId
from hetero_hvd.messages.phases import columns_of

Cause = Literal[
    "throttle",
    "memory",
    "garbage",
    "contention",
    "input",
    "transfer",
    "compute",
    "optimizer",
    "script",
    "unknown",
]
"""Why a worker is slower than it should be."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

Bound = Literal[
    "input",
    "transfer",
    "compute",
    "optimizer",
    "script",
    "evaluation",
    "contention",
    "communication",
]
"""What a run is bound by."""

FindingKind = Literal[Bound, "straggler", "imbalance", "memory", "stall"]
"""What a judgement is about."""


@dataclass(frozen=True, kw_only=True)
class SlowBy:
    """What makes a worker slow.

    Attributes:
        words: Why it is slow.
        advice: What to do; `{node}` is its machine.
        columns: Of `StepTiming`: the parts of its own time that grow by it.
        stops_by: Column of `StepTiming`: in which it is stopped, whichever part it is in.
        least_ratio: Part of the lost time that such a stop must account for to be named.
        is_per_step: Whether what it takes does not grow with the worker's share.
    """

    words: str
    advice: str
    columns: tuple[str, ...] = ()
    stops_by: str = ""
    least_ratio: float = 1.0
    is_per_step: bool = False


SLOW_BY: dict[Cause, SlowBy] = {
    "throttle": SlowBy(
        words="a CPU quota holds it back",
        advice="raise the CPU quota of {node}",
        stops_by="throttled_seconds",
        least_ratio=0.8,
    ),
    # Waits for memory are 0 on a healthy machine: the kernel counts waits for pages that it has
    # just taken away, not its own work of taking them nor other reads: 0.1 to 0.4 was measured.
    "memory": SlowBy(
        words="its processes wait for memory that the kernel takes from them",
        advice="more memory for {node}, or fewer processes on it",
        stops_by="memory_stall_seconds",
        least_ratio=0.05,
    ),
    "garbage": SlowBy(
        words="Python's garbage collection stops it",
        advice="gc.freeze() once model and data are built, and fewer new objects in each step",
        stops_by="garbage_seconds",
        least_ratio=0.5,
        is_per_step=True,
    ),
    # On a busy machine contention is a part of whatever else takes long, so it is named only where
    # it is nearly all of it.
    "contention": SlowBy(
        words="other programs or workers take its processor",
        advice="look at what else runs on {node}, or give it fewer workers or threads",
        stops_by="contention_seconds",
        least_ratio=0.8,
    ),
    "input": SlowBy(
        words="it waits for its data",
        advice="faster storage or more loader workers on {node}",
        columns=columns_of("input"),
    ),
    "transfer": SlowBy(
        words="copying to its device takes long",
        advice="look at what else uses {node}'s bus",
        columns=columns_of("transfer"),
    ),
    "compute": SlowBy(
        words="its own computation takes long",
        advice="look at the loss function and at what else runs on {node}, at its clock and "
        "temperature",
        columns=columns_of("compute"),
    ),
    "optimizer": SlowBy(
        words="its optimizer takes long",
        advice="look at the optimizer's own work on {node}: hooks, clipping, state in slow memory",
        columns=columns_of("optimizer"),
        is_per_step=True,
    ),
    "script": SlowBy(
        words="its script takes long between steps",
        advice="look at what the script does on {node} between steps: printing, validation, saving",
        columns=columns_of("script"),
        is_per_step=True,
    ),
    "unknown": SlowBy(
        words="the cause is not known",
        advice="look at {node}: its load, clock, disk and network",
    ),
}
"""Of each cause; stops in the order in which they are looked for."""


@dataclass(frozen=True, kw_only=True)
class BoundBy:
    """What binds a run.

    Attributes:
        words: Where the part of a step goes that is told.
        advice: What to do.
    """

    words: str
    advice: str


BOUND_BY: dict[Bound, BoundBy] = {
    "input": BoundBy(
        words="waiting for data",
        advice="more loader workers, faster storage, or less work per sample in the data set",
    ),
    "transfer": BoundBy(
        words="copying to the device",
        advice="pinned memory and smaller samples (types, sizes) on the way to the device",
    ),
    "compute": BoundBy(
        words="computing",
        advice="faster devices, mixed precision, or a smaller model",
    ),
    "optimizer": BoundBy(
        words="in the optimizer",
        advice="a fused optimizer (fused=True), or fewer and larger steps",
    ),
    "script": BoundBy(
        words="between steps, in your script's own code",
        advice="do less between steps: log and print less often, validate with trainer.evaluate, "
        "save with the trainer's checkpoints; hetero_hvd.phase tells which part takes long",
    ),
    "evaluation": BoundBy(
        words="in trainer.evaluate",
        advice="evaluate less often, or on fewer samples",
    ),
    "contention": BoundBy(
        words="waiting for a processor that others use",
        advice="fewer programs, workers or threads on its machine",
    ),
    "communication": BoundBy(
        words="in reduction, on every worker",
        advice="accumulation_steps, bucket_bytes or compression of the Trainer; if it is "
        "worse than it was, look at the network between the nodes",
    ),
}
"""Of each."""


LEAST_TOLD_RATIO = 0.005
"""What is less would be told as 0%."""


def gain_in_words(ratio: float, bound: str = "at most") -> str:
    """What could be gained, in whole percent: `at most 3%`, or `less than 1%`."""
    return f"{bound} {ratio:.0%}" if ratio >= LEAST_TOLD_RATIO else "less than 1%"


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judgement about a run.

    Attributes:
        kind: What it is about.
        is_complete: False where it abstains, because something was not measured.
        words: The judgement for people.
        worker: Whom it is about, if it is about one.
        cause: Of a straggler: as in `StragglerReported`.
        is_past: It is over.
        evidence: The numbers behind it; names end in their unit.
        max_gain_ratio: Throughput could grow by at most this part; None: not known.
        next_step: What to do, if anything.
    """

    kind: FindingKind
    is_complete: bool
    words: str
    worker: WorkerId | None = None
    cause: str = ""
    is_past: bool = False
    evidence: dict[str, float] = {}
    max_gain_ratio: float | None = None
    next_step: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether something could be gained."""
        return self.is_complete and not self.is_past and bool(self.max_gain_ratio)

    def __str__(self) -> str:
        gain = (
            f"; {gain_in_words(self.max_gain_ratio, 'up to')} faster" if self.max_gain_ratio else ""
        )
        step = f". Next: {self.next_step}" if self.next_step else ""
        return f"{'' if self.is_complete else 'INCOMPLETE: '}{self.words}{gain}{step}"


class Judged(Message, frozen=True):
    """What limits the run has changed, or the run is about to end.

    Attributes:
        step: Last step that it is based on.
        findings: The whole judgement.
    """

    step: int
    findings: tuple[Finding, ...]
