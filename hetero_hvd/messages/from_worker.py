"""What a worker tells the driver."""

from __future__ import annotations

from typing import Literal

import msgspec

from hetero_hvd.messages.identity import GlooAddress, Message, WorkerId
from hetero_hvd.messages.profile import (
    Calibrated,
    CollectivesTimed,
    CommMeasured,
    DeviceUsed,
    Evaluated,
    FileSet,
    Logged,
    PhasesTimed,
    SourcesRead,
    StateDivided,
    TraceWritten,
)
from hetero_hvd.messages.timing import StepTiming


class Ready(Message, frozen=True):
    """The worker has run the user's script up to `init` and waits to be admitted.

    Attributes:
        worker: Who it is.
        host: Its name as a Horovod host; new at each restart (`alpha-0`, then `alpha-0.r1`).
        interface: That Gloo will use: the one of nodes.yaml, or by which it reached the driver.
        pid: Process id on its node.
        versions: What must fit together (`core.versions.COLUMNS`) to its version.
        device: What it computes on, in words; empty: not told.
        device_uuid: Identity of its GPU; empty for a CPU.
        machine_id: Identity of its machine, whatever that is called; empty: not told.
        data: The sets of files that its script has opened so far, in that order.
        gloo: Where the others reach it; None: nobody can try.
    """

    worker: WorkerId
    host: str
    interface: str
    pid: int
    versions: dict[str, str]
    device: str = ""
    device_uuid: str = ""
    machine_id: str = ""
    data: tuple[FileSet, ...] = ()
    gloo: GlooAddress | None = None


Sharing = Literal["planned", "fixed", "varying"]
"""By plans; the same for all, by the script itself; as much as it gets done."""


class WorkersJoined(Message, frozen=True):
    """A rendezvous is complete and every replica is consistent. Sent by rank 0.

    Attributes:
        rendezvous_id: Version of the membership, > any earlier one of this job.
        workers: All members in rank order.
        applied_steps: Optimizer steps applied so far; the next step to run has this index.
        global_batch_size: Samples per optimizer step, > 0.
        capacities: Largest local batch per member in rank order, samples; -1 = not limited.
        prefetch_steps: Steps ahead of the current one whose samples may already be loaded.
        undivided: Samples that are never split between workers, >= 1, as the script wants it.
        micro_batch_sizes: Samples in one forward pass at most, by rank; 0, or empty: no limit.
        devices: What each member computes on, in rank order; empty: not told.
        memory_bytes: Of each member's GPU, in rank order; 0 = on a CPU; empty: not told.
        model: Class of the model and a digest of what its speed depends on; empty: not told.
        shares_vary: Whether each worker takes in a step what it gets done; `wait_free` on the wire.
        shares_fixed: Whether the script divides its data itself: `global_batch_size` is a guess.
        can_calibrate: Whether all members can measure themselves before their next step.
    """

    rendezvous_id: int
    workers: tuple[WorkerId, ...]
    applied_steps: int
    global_batch_size: int
    capacities: tuple[int, ...]
    prefetch_steps: int
    undivided: int = 1
    micro_batch_sizes: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    memory_bytes: tuple[float, ...] = ()
    model: str = ""
    shares_vary: bool = msgspec.field(default=False, name="wait_free")
    shares_fixed: bool = False
    can_calibrate: bool = False

    @property
    def follows_plan(self) -> bool:
        """Whether the plan says what each worker takes in a step."""
        return self.sharing == "planned"

    @property
    def sharing(self) -> Sharing:
        """What decides how much each worker takes."""
        if self.shares_fixed:
            return "fixed"
        return "varying" if self.shares_vary else "planned"


class StepsTimed(Message, frozen=True):
    """One exchange: the timings of all workers. Sent by rank 0.

    Attributes:
        rendezvous_id: Membership that the rows belong to.
        step: Index of the last step in the rows.
        epoch: Epoch of that step.
        loss: Mean loss over the global batch of that step.
        timings: One row per worker in rank order.
        exchange_seconds: Time the training loop was blocked by the exchange.
    """

    rendezvous_id: int
    step: int
    epoch: int
    loss: float
    timings: tuple[StepTiming, ...]
    exchange_seconds: float


class CheckpointWritten(Message, frozen=True):
    """A state of the training is on disk as a whole. Sent by who has written it.

    Attributes:
        step: Applied steps of that state.
        path: Where it is.
        num_bytes: Its size.
        metrics: The results of the evaluation that it was kept for; empty: it was time for one.
        is_best: Whether it is the best one so far by the metric that the job names.
        trainer: Whose state it is: which `Trainer` of the script, from 1.
        copy_seconds: So long the training stood still, while the state was copied; the rest is done
            beside it.
    """

    step: int
    path: str
    num_bytes: int
    metrics: dict[str, float]
    is_best: bool
    trainer: int = 1
    copy_seconds: float = 0.0


class CheckpointFailed(Message, frozen=True):
    """A state of the training could not be written down. Sent by who has tried.

    Attributes:
        step: Applied steps of that state.
        path: Where it was to be.
        error: Why it is not there, in words.
        num_failed: So many of this trainer have failed in a row, >= 1.
        trainer: As of `CheckpointWritten`.
    """

    step: int
    path: str
    error: str
    num_failed: int = 1
    trainer: int = 1


class Recovered(Message, frozen=True):
    """A worker is back in training after a reset. Sent by every survivor.

    Attributes:
        worker: Who.
        rendezvous_id: The new membership.
        cause: `fault` or `membership`.
        seconds: From the last applied step to being consistent again.
        broadcast: Whether state had to be copied between workers.
        keeps_steps: Whether what the members had computed of the steps under way is still used.
        parts: Name to duration and processor time of each, in seconds, since it knew of it.
    """

    worker: WorkerId
    rendezvous_id: int
    cause: str
    seconds: float
    broadcast: bool
    keeps_steps: bool = False
    parts: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)


class StalenessEnded(Message, frozen=True):
    """The staleness bound has fallen back to 0, on all workers alike. Sent by rank 0.

    Attributes:
        worker: Who says so.
        step: Steps applied.
        reason: In words.
    """

    worker: WorkerId
    step: int
    reason: str


class OutOfMemory(Message, frozen=True):
    """A micro-batch did not fit into a worker's memory; the step went on in smaller ones.

    Attributes:
        worker: Who.
        step: Index of the step under way.
        micro_batch_size: Samples in the micro-batch that failed.
        next_micro_batch_size: Samples in a micro-batch at most from now on.
        error: First line of what the allocator said.
    """

    worker: WorkerId
    step: int
    micro_batch_size: int
    next_micro_batch_size: int
    error: str


class MicroBatchRaised(Message, frozen=True):
    """The worker is about to put more samples through the model at once than ever before.

    Should the kernel kill it for that, this is all that it leaves.

    Attributes:
        micro_batch_size: Samples.
    """

    micro_batch_size: int


class Entered(Message, frozen=True):
    """The worker's script begins a loop over epochs: the first one, or one more.

    Attributes:
        worker: Who.
    """

    worker: WorkerId


class Finished(Message, frozen=True):
    """The worker has run all epochs of a loop; its script goes on, perhaps with one more loop.

    Attributes:
        worker: Who.
        applied_steps: Optimizer steps applied.
        checksum: Digest of parameters and optimizer state, equal on all workers.
    """

    worker: WorkerId
    applied_steps: int
    checksum: str


class ScriptEnded(Message, frozen=True):
    """The script has ended without an error, whether it has run all its epochs or not.

    The worker takes part in nothing any more; its process may still take long.

    Attributes:
        applied_steps: Optimizer steps applied.
        checksum: Digest of parameters and optimizer state when the loop was left; empty: unknown.
        arithmetic: What its rounding depends on; workers of one have equal digests.
    """

    applied_steps: int
    checksum: str = ""
    arithmetic: str = ""


class Leaving(Message, frozen=True):
    """The worker was asked to leave and takes no part any more; its process may still take long.

    Attributes:
        applied_steps: Optimizer steps applied.
        is_writing: Whether it keeps the last state, which is worth waiting for.
    """

    applied_steps: int
    is_writing: bool = False


class Crashed(Message, frozen=True):
    """The user's script ended in an exception; the process is about to exit.

    Attributes:
        worker: Who.
        error: Last line of the traceback.
        traceback: All of it.
        user_error: The input was wrong: one line is enough, and trying again is of no use.
        may_pass: With `user_error`: unless it is tried later.
        is_of_machine: This worker's machine is to blame: one line is enough, others may go on.
    """

    worker: WorkerId
    error: str
    traceback: str
    user_error: bool
    is_of_machine: bool = False
    may_pass: bool = False


class Heartbeat(Message, frozen=True):
    """The worker's process is alive.

    Attributes:
        applied_steps: Its progress; -1 before admission.
        phase: Of `PHASES`; `rendezvous`; empty: between two, in the script's own code.
        operation: What its training waits in together with the others; empty: it does not wait.
        place: Where the script called that, file and line.
    """

    applied_steps: int
    phase: str = ""
    operation: str = ""
    place: str = ""


class SessionsWanted(Message, frozen=True):
    """What the script wants to have recorded of all machines of the cluster from now on.

    Attributes:
        worker: Who.
        names: Of the phases for which it is, that this worker is in; empty: of none.
        at_unix_seconds: When this is told, by the worker's clock; 0: it does not say.
        ago_seconds: How long that had been so by then, as nobody was there to be told.
    """

    worker: WorkerId
    names: tuple[str, ...]
    at_unix_seconds: float = 0.0
    ago_seconds: float = 0.0


class ClockTold(Message, frozen=True):
    """The answer to `ClockAsked`; times are seconds since 1970.

    Attributes:
        asked_at_seconds: As it stood in the question: the driver's clock.
        received_at_seconds: The worker's clock when the question came.
        replied_at_seconds: The worker's clock at this answer.
    """

    asked_at_seconds: float
    received_at_seconds: float
    replied_at_seconds: float


class RouteTold(Message, frozen=True):
    """The answer to `RouteAsked`.

    Attributes:
        host: As it stood in the question.
        fault: Why it cannot be reached, in words; empty: it can.
    """

    host: str
    fault: str


FromWorker = (
    Ready
    | WorkersJoined
    | Calibrated
    | StepsTimed
    | CollectivesTimed
    | PhasesTimed
    | SourcesRead
    | DeviceUsed
    | CommMeasured
    | TraceWritten
    | Evaluated
    | Logged
    | CheckpointWritten
    | CheckpointFailed
    | Recovered
    | OutOfMemory
    | MicroBatchRaised
    | StalenessEnded
    | StateDivided
    | Entered
    | Finished
    | ScriptEnded
    | Leaving
    | Crashed
    | Heartbeat
    | SessionsWanted
    | ClockTold
    | RouteTold
)
