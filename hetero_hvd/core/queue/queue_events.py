"""What happens to the queue, and what it wants to be done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hetero_hvd.core.queue.devices import DeviceCondition, DevicePool, QueueDevice
from hetero_hvd.core.queue.healing import FailureCause
from hetero_hvd.core.queue.jobs import JobPriority, JobRequest
from hetero_hvd.core.queue.measured.measured_trial import MeasuredTrial


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user has submitted a job."""

    request: JobRequest


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A running job has told how far it is.

    Attributes:
        done_work: Since its first start, in its own unit; it never falls.
    """

    job: str
    done_work: float


@dataclass(frozen=True, slots=True)
class ModelTold:
    """A running job has told what it trains.

    Attributes:
        model: See `JobRequest`; not empty.
        global_batch_size: Samples per optimizer step; 0: not told.
    """

    job: str
    model: str
    global_batch_size: int = 0


@dataclass(frozen=True, slots=True)
class ModelTried:
    """A user has shown what a trial has measured of a model; see `ModelBook.note_trial`.

    Attributes:
        user: Whose trial.
        script: See `JobRequest`.
        model: See `JobRequest`; not empty.
        trial: Of nodes that the cluster has.
    """

    user: str
    script: str
    model: str
    trial: MeasuredTrial


@dataclass(frozen=True, slots=True)
class JobMeasured:
    """It is known now how much work a job has, or how fast devices are for it.

    Attributes:
        work: All of it, in its own unit; NaN: not known.
        rates: See `JobRequest`, in that unit.
        bytes_per_unit: See `JobRequest`.
        hidden_ratio: See `JobRequest`.
    """

    job: str
    work: float
    rates: Mapping[str, float]
    bytes_per_unit: float = 0.0
    hidden_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """The reductions of a job have shown how fast the links of its nodes are; see `LinkBook.note`.

    Attributes:
        nodes: Names of the nodes.
        seconds_per_byte: Inverse of the bus bandwidth.
        num_bytes: Of a step's gradients.
    """

    nodes: tuple[str, ...]
    seconds_per_byte: float
    num_bytes: float


@dataclass(frozen=True, slots=True)
class JobIdled:
    """The devices of a running job have done nothing for some time.

    Attributes:
        idle_seconds: For so long by now; 0: they work.
    """

    job: str
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job has ended well."""

    job: str


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job has ended otherwise; it may be tried again."""

    job: str
    cause: FailureCause


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Its owner or an operator wants it to end."""

    job: str


@dataclass(frozen=True, slots=True)
class JobHeld:
    """It is not to be started until it is released; one that shrinks gives back what it has."""

    job: str


@dataclass(frozen=True, slots=True)
class JobReleased:
    """It may be started again."""

    job: str


@dataclass(frozen=True, slots=True)
class JobMoved:
    """It goes to another pool, or gets another priority.

    Attributes:
        pool: Empty: as before.
        priority: None: as before.
    """

    job: str
    pool: str = ""
    priority: JobPriority | None = None


@dataclass(frozen=True, slots=True)
class DeviceChanged:
    """A device may be leased, or not any more: its node, its owner or the guard says so."""

    device: str
    condition: DeviceCondition


@dataclass(frozen=True, slots=True)
class DeviceAdded:
    """The cluster has a device more, or has one that is not what it was known as."""

    device: QueueDevice


@dataclass(frozen=True, slots=True)
class PoolsChanged:
    """Pools have other settings of their own.

    Attributes:
        pools: All that have some.
    """

    pools: tuple[DevicePool, ...]


QueueEvent = (
    JobSubmitted
    | JobProgressed
    | ModelTold
    | ModelTried
    | JobMeasured
    | LinksMeasured
    | JobIdled
    | JobFinished
    | JobFailed
    | JobCancelled
    | JobHeld
    | JobReleased
    | JobMoved
    | DeviceChanged
    | DeviceAdded
    | PoolsChanged
)

DecisionKind = Literal["start", "grow", "shrink", "move", "pause", "end"]
"""`move`: as many devices, but others. `pause`: it is shrunk to nothing; it keeps its state and
goes
on where it was, with the next `start`. `end`: its time is up, or it can never start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDecision:
    """A change for one job.

    Attributes:
        kind: What is done.
        job: Its name.
        devices: Names of all that it has from now on, sorted.
        reason: One sentence, for people.
        keeps_until_seconds: Its fewest devices are not taken away earlier; -inf: at any time.
    """

    kind: DecisionKind
    job: str
    devices: tuple[str, ...] = ()
    reason: str = ""
    keeps_until_seconds: float = -math.inf
