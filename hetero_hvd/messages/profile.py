"""What workers find out beside the phases of a step, and what their data are."""

from __future__ import annotations

import msgspec

from hetero_hvd.messages.identity import Message, WorkerId
from hetero_hvd.messages.timing import PassTiming


class OperationTiming(msgspec.Struct, frozen=True, kw_only=True):
    """All operations of one kind and size in some time.

    Attributes:
        op: `allreduce`, `allgather`, `broadcast`, `alltoall` or `reducescatter`.
        backend: `gloo` or `nccl`.
        size_bucket_bytes: Power of two that holds one operation's bytes.
        count: So many operations.
        num_bytes: Of all of them together.
        total_seconds: From submission to completion, of all of them together.
        min_seconds: Of the fastest: the one for which nobody was late.
        max_seconds: Of the slowest.
    """

    op: str
    backend: str
    size_bucket_bytes: int
    count: int
    num_bytes: int
    total_seconds: float
    min_seconds: float
    max_seconds: float

    @classmethod
    def first(
        cls, op: str, backend: str, size_bucket_bytes: int, *, num_bytes: int, seconds: float
    ) -> OperationTiming:
        """Of a single operation."""
        return cls(
            op=op,
            backend=backend,
            size_bucket_bytes=size_bucket_bytes,
            count=1,
            num_bytes=num_bytes,
            total_seconds=seconds,
            min_seconds=seconds,
            max_seconds=seconds,
        )

    def plus(self, *, num_bytes: int, seconds: float) -> OperationTiming:
        """With one more operation."""
        return OperationTiming(
            op=self.op,
            backend=self.backend,
            size_bucket_bytes=self.size_bucket_bytes,
            count=self.count + 1,
            num_bytes=self.num_bytes + num_bytes,
            total_seconds=self.total_seconds + seconds,
            min_seconds=min(self.min_seconds, seconds),
            max_seconds=max(self.max_seconds, seconds),
        )


class CollectivesTimed(Message, frozen=True):
    """The collective operations of a few seconds. Sent by rank 0, as it saw them.

    A duration contains the wait for the last worker to submit its part.

    Attributes:
        rendezvous_id: Membership that they belong to.
        step: Index of the last step.
        num_workers: That took part.
        operations: By kind and size.
    """

    rendezvous_id: int
    step: int
    num_workers: int
    operations: tuple[OperationTiming, ...]


class PhasesTimed(Message, frozen=True):
    """Time in the blocks that the user's script has named with `hetero_hvd.phase`.

    Attributes:
        worker: Whose script.
        step: Index of the last step.
        seconds: Name to the time of its blocks since the last such message; blocks inside others
            count for both.
        counts: Name to how often the block was entered.
    """

    worker: WorkerId
    step: int
    seconds: dict[str, float]
    counts: dict[str, int]


class DeviceUsed(Message, frozen=True):
    """How busy a worker's GPU is; sent every few seconds if that has changed.

    Attributes:
        worker: Whose.
        step: Index of the last step.
        utilization_ratio: Part of the time in which a kernel ran, 0...1, over the last second or
            less, whoever's kernel it was.
    """

    worker: WorkerId
    step: int
    utilization_ratio: float


class SourceRead(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker had to do with one source of data in some time.

    Attributes:
        wait_seconds: Of its waits for data, the part that this source has in the work of its loader
            processes, or of itself where there are none.
        read_seconds: In reading, all these processes together.
        decode_seconds: In making samples from what was read, all together.
        num_bytes: That were read.
    """

    wait_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_bytes: float = 0.0


class SourcesRead(Message, frozen=True):
    """What a worker had to do with its sources of data since the last such message.

    Attributes:
        worker: Whose script.
        step: Index of the last step.
        sources: URL, without what may be secret, to what was done.
    """

    worker: WorkerId
    step: int
    sources: dict[str, SourceRead]


class OperationMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """One operation at one size, measured by itself.

    Attributes:
        op: As in `OperationTiming`.
        backend: `gloo` or `nccl`.
        num_bytes: S of `core.bandwidth`.
        count: So many times.
        min_seconds: Of the fastest; each time it is the worker for which it took longest.
        median_seconds: Of all.
        p99_seconds: Of all.
        num_wrong: Elements of the results, on all workers, that are not what they must be.
        spread_ratio: Of the times, see `core.benchmark.spread`; None: too few.
    """

    op: str
    backend: str
    num_bytes: int
    count: int
    min_seconds: float
    median_seconds: float
    p99_seconds: float
    num_wrong: int
    spread_ratio: float | None = None


class CommMeasured(Message, frozen=True):
    """What `hetero-hvd bench-comm` found. Sent by rank 0.

    Attributes:
        workers: Who took part, in rank order.
        operations: By backend, operation and size.
        link_bytes: What was sent over each link.
        links: Bytes per second from each worker (row) to each other (column); 0: not measured.
        link_spread_ratios: Of the times on each link; None: too few.
    """

    workers: tuple[WorkerId, ...]
    operations: tuple[OperationMeasured, ...]
    link_bytes: int
    links: tuple[tuple[float, ...], ...]
    link_spread_ratios: tuple[tuple[float | None, ...], ...] = ()


class Evaluated(Message, frozen=True):
    """An evaluation over a whole set is done. Sent by rank 0, or the first one that took part.

    Attributes:
        epoch: Epoch after which it ran.
        step: Applied steps at that time.
        metrics: Name to exact weighted mean over the set.
        needs_all: Whether workers without a part in the step had none in it: better that all have.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    needs_all: bool = False


class LoggedValue(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one name, logged one after the other; NaN is one of them.

    Attributes:
        step: Applied steps at the last of them.
        count: Number of values, >= 1.
        mean: Of all; NaN if one of them is.
        minimum: The least; NaN if all are.
        maximum: The largest; NaN if all are.
        last: The newest.
    """

    step: int
    count: int
    mean: float
    minimum: float
    maximum: float
    last: float


class Logged(Message, frozen=True):
    """What was logged in the last second or more. Sent by whoever it counts of.

    Attributes:
        step: Applied steps.
        epoch: Epoch under way.
        values: Name to what was logged; `loss` and `learning_rate` are logged by the trainer.
        remaining_steps: Steps until the last epoch is done; -1: not known.
        is_left: Whether the script has left its loop: the steps that remain will not be taken.
    """

    step: int
    epoch: int
    values: dict[str, LoggedValue]
    remaining_steps: int = -1
    is_left: bool = False

    @property
    def steps_to_take(self) -> int:
        """Until the training ends; -1: not known."""
        return 0 if self.is_left else self.remaining_steps

    @property
    def total_steps(self) -> int | None:
        """Applied steps when the last epoch is done, if it comes so far; None: not known."""
        return self.step + self.remaining_steps if self.remaining_steps >= 0 else None


class TraceWritten(Message, frozen=True):
    """A window is over. Sent by the worker that recorded it.

    Attributes:
        worker: Who.
        kind: `profiler` or `timeline`.
        path: File on the worker's node; empty if it could not be kept.
        num_bytes: Its size.
        from_step: First step in it.
        num_steps: So many were recorded.
        problem: Why it is not complete, in words; empty if it is.
    """

    worker: WorkerId
    kind: str
    path: str
    num_bytes: int
    from_step: int
    num_steps: int
    problem: str


class Calibrated(Message, frozen=True):
    """What the members have measured before the first step of a plan. Sent by rank 0.

    Attributes:
        rendezvous_id: Membership that it was measured in.
        plan_id: Plan that asked for it.
        measured: Of each member in rank order; empty where it could not measure.
    """

    rendezvous_id: int
    plan_id: int
    measured: tuple[tuple[PassTiming, ...], ...]


class FileSet(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a data set of the script is made of, as `core.data.file_sets` compares them.

    Attributes:
        what: What it is and where, for people; it may differ between nodes.
        num_files: So many.
        num_bytes: Of all of them together, as far as their sizes are told.
        digest: Of their names and sizes, in order.
        contents: Of what their store says of their contents; empty: it says nothing.
        store: What the contents of two sets can be compared by.
        sketch: What tells in which files two sets differ, if these are few; empty: not told.
    """

    what: str
    num_files: int
    num_bytes: int
    digest: str
    contents: str = ""
    store: str = ""
    sketch: bytes = b""


class StateDivided(Message, frozen=True):
    """What has become of an optimizer's state that is, or may be, in parts. Sent by rank 0.

    Attributes:
        step: Steps applied.
        words: Who holds what of it, or why it stands still.
        is_short: Whether the workers wait for others, as their memory does not hold it.
    """

    step: int
    words: str
    is_short: bool = False
