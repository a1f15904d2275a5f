"""The records that cross a process boundary, and nothing else.

All are frozen, compare by value and hold plain numbers and strings, so that a recorded run can be
replayed through `core`. On the wire they are MessagePack (NaN survives, unlike in JSON) with the
type's name as tag; decoding checks every field's type and raises `msgspec.ValidationError` on
anything else.
"""

from __future__ import annotations

import re

import msgspec

from hetero_hvd.errors import UserError

NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
"""What a node may be called: a DNS-like label, 1 to 64 characters, safe in paths and host names."""


class WorkerId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A worker's identity. Ranks change at every reset; this does not.

    Attributes:
        node: Name of the node, as in nodes.yaml.
        slot: Process place on that node, 0-based.
    """

    node: str
    slot: int

    def __str__(self) -> str:
        return f"{self.node}:{self.slot}"

    @classmethod
    def parse(cls, text: str) -> WorkerId:
        """Read what `str` wrote.

        Raises:
            UserError: The text is not `node:slot` with a valid node name and a slot >= 0.
        """
        node, _, slot = text.rpartition(":")
        if NODE_NAME.fullmatch(node) is None or not slot.isdecimal():
            raise UserError(f"worker {text!r}: must be NODE:SLOT, for example alpha:0")
        return cls(node, int(slot))


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that is sent on a channel."""


# --- worker to driver -------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """The worker has run the user's script up to `init` and waits to be admitted.

    Attributes:
        worker: Who it is.
        host: Its name as a Horovod host; new at each restart (`alpha-0`, then `alpha-0.r1`).
        interface: Network interface through which it reached the driver; Gloo will use it.
        pid: Process id on its node.
        versions: Package name to version, for the report of mismatches.
    """

    worker: WorkerId
    host: str
    interface: str
    pid: int
    versions: dict[str, str]


class WorkersJoined(Message, frozen=True):
    """A rendezvous is complete and every replica is consistent. Sent by rank 0.

    Attributes:
        rendezvous_id: Version of the membership, > any earlier one of this job.
        workers: All members in rank order.
        applied_steps: Optimizer steps applied so far; the next step to run has this index.
        global_batch_size: Samples per optimizer step, > 0.
        capacities: Largest local batch per member in rank order, samples; -1 = not limited.
        prefetch_steps: Steps ahead of the current one whose samples may already be loaded.
    """

    rendezvous_id: int
    workers: tuple[WorkerId, ...]
    applied_steps: int
    global_batch_size: int
    capacities: tuple[int, ...]
    prefetch_steps: int


class StepTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Where one worker's time went, mean over `num_steps` steps at one local batch size.

    NaN means not measured. All in seconds per step except the first three.

    Attributes:
        num_steps: Steps averaged, >= 0; 0 means that nothing was measured since the last row.
        local_batch_size: Samples per step of this worker in those steps.
        memory_bytes: Peak memory of the worker's device, bytes.
        data_wait_seconds: Waiting for the loader.
        transfer_seconds: Host to device.
        forward_seconds: Forward passes and loss.
        backward_seconds: Backward passes.
        comm_wait_seconds: Blocked on reductions after the own backward ended: what others cost.
        optimizer_seconds: Unscale, clip, optimizer and scheduler.
        step_seconds: From the end of one step to the end of the next.
    """

    num_steps: int
    local_batch_size: int
    memory_bytes: float
    data_wait_seconds: float
    transfer_seconds: float
    forward_seconds: float
    backward_seconds: float
    comm_wait_seconds: float
    optimizer_seconds: float
    step_seconds: float

    @property
    def busy_seconds(self) -> float:
        """The worker's own time in a step, before any wait for others."""
        return (
            self.data_wait_seconds
            + self.transfer_seconds
            + self.forward_seconds
            + self.backward_seconds
            + self.optimizer_seconds
        )


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


class Evaluated(Message, frozen=True):
    """An evaluation over a whole set is done. Sent by rank 0.

    Attributes:
        epoch: Epoch after which it ran.
        step: Applied steps at that time.
        metrics: Name to exact weighted mean over the set.
    """

    epoch: int
    step: int
    metrics: dict[str, float]


class Recovered(Message, frozen=True):
    """A worker is back in training after a reset. Sent by every survivor.

    Attributes:
        worker: Who.
        rendezvous_id: The new membership.
        cause: `fault` or `membership`.
        seconds: From the last applied step to being consistent again.
        broadcast: Whether state had to be copied between workers.
    """

    worker: WorkerId
    rendezvous_id: int
    cause: str
    seconds: float
    broadcast: bool


class Finished(Message, frozen=True):
    """The worker has run all epochs and is about to leave.

    Attributes:
        worker: Who.
        applied_steps: Optimizer steps applied.
        checksum: Digest of parameters and optimizer state, equal on all workers.
    """

    worker: WorkerId
    applied_steps: int
    checksum: str


class Crashed(Message, frozen=True):
    """The user's script ended in an exception; the process is about to exit.

    Attributes:
        worker: Who.
        error: Last line of the traceback.
        traceback: All of it.
        user_error: The input was wrong: one line is enough, and trying again is of no use.
    """

    worker: WorkerId
    error: str
    traceback: str
    user_error: bool


class Heartbeat(Message, frozen=True):
    """The worker's process is alive.

    Attributes:
        applied_steps: Its progress; -1 before admission.
    """

    applied_steps: int


# --- driver to worker -------------------------------------------------------------------------


class Admit(Message, frozen=True):
    """You are a member: start Horovod with this environment.

    Attributes:
        environment: `HOROVOD_*` variables of this slot.
        rendezvous_id: Lower bound for the next rendezvous's id.
    """

    environment: dict[str, str]
    rendezvous_id: int


class BatchPlan(Message, frozen=True):
    """Who processes how many samples in each step, until the next plan.

    Attributes:
        rendezvous_id: Membership that it was made for; a stale plan is dropped.
        plan_id: Version, growing within a rendezvous; the newer one wins.
        from_step: First step that it holds for, the same on every worker.
        exchange_steps: Steps between two exchanges of timings from then on, >= 1.
        workers: Members in rank order.
        local_batch_sizes: Samples per step in rank order; sums to the global batch size.
        reason: Why, in words.
    """

    rendezvous_id: int
    plan_id: int
    from_step: int
    exchange_steps: int
    workers: tuple[WorkerId, ...]
    local_batch_sizes: tuple[int, ...]
    reason: str

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step."""
        return sum(self.local_batch_sizes)


class ResetRequested(Message, frozen=True):
    """The membership should change: agree on a step with the others and reset after it.

    Attributes:
        reason: Why, in words.
    """

    reason: str


class Stop(Message, frozen=True):
    """Leave the job: the driver ends it, or this worker is no longer a member.

    Attributes:
        reason: Why, in words.
    """

    reason: str


FromWorker = (
    Ready | WorkersJoined | StepsTimed | Evaluated | Recovered | Finished | Crashed | Heartbeat
)
FromDriver = Admit | BatchPlan | ResetRequested | Stop
