"""What the driver sees and decides; with the workers' own records, a run's whole history."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from hetero_hvd.messages.causes import Judged
from hetero_hvd.messages.from_driver import BatchPlan
from hetero_hvd.messages.from_worker import (
    CheckpointFailed,
    CheckpointWritten,
    Crashed,
    Finished,
    OutOfMemory,
    Ready,
    Recovered,
    SessionsWanted,
    StalenessEnded,
    StepsTimed,
    WorkersJoined,
)
from hetero_hvd.messages.identity import Message, WorkerId
from hetero_hvd.messages.profile import (
    Calibrated,
    CollectivesTimed,
    CommMeasured,
    DeviceUsed,
    Evaluated,
    Logged,
    PhasesTimed,
    SourcesRead,
    StateDivided,
    TraceWritten,
)
from hetero_hvd.messages.samples import NodeEquipped, NodeSampled, OwnerSeen


class RunStarted(Message, frozen=True):
    """A job has begun.

    Attributes:
        run_id: Of this run and no other: the name of its folder and eight random digits.
        command: The user's command; secrets in it are hidden.
        nodes: Names of the nodes of nodes.yaml.
        settings: Setting of the job to its value in text; no secrets are among them.
        name: What the user calls the run; empty if not at all.
        tags: What the user says of it, by name.
        origin: What the script was and what it stands on: versions, digest, commit, by name.
    """

    run_id: str
    command: tuple[str, ...]
    nodes: tuple[str, ...]
    settings: dict[str, str]
    name: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    origin: dict[str, str] = msgspec.field(default_factory=dict)


class NodesPriced(Message, frozen=True):
    """What nodes cost from now on; told at the start, and when nodes.yaml or who is found changes.

    Attributes:
        per_hour: Name of a node to the price of the whole node in any currency, >= 0.
        unpriced: Names of nodes without a price.
    """

    per_hour: dict[str, float]
    unpriced: tuple[str, ...] = ()


class EpochBegan(Message, frozen=True):
    """The first exchange of an epoch was heard of.

    Attributes:
        epoch: Its number from 0.
        step: The last step of that exchange.
        within_seconds: It had begun so long before at most; None: not told, as by an earlier
            version.
    """

    epoch: int
    step: int
    within_seconds: float | None = None


class WorkerStarted(Message, frozen=True):
    """A worker's process was started.

    Attributes:
        worker: Who.
        host: Its name as a Horovod host, new at each restart.
        num_restarts: So many came before.
    """

    worker: WorkerId
    host: str
    num_restarts: int


class WorkerExited(Message, frozen=True):
    """A worker's process has ended.

    Attributes:
        worker: Who.
        host: Its name as a Horovod host.
        exit_code: Of the process; 128 + n if signal n ended it.
        words: The same in words.
    """

    worker: WorkerId
    host: str
    exit_code: int
    words: str


class MembersMet(Message, frozen=True):
    """How the members of a new membership came together, as their driver saw it.

    Attributes:
        rendezvous_id: The membership.
        return_seconds: From the first that asked for its rank until all had theirs.
        address_seconds: From then on until the last one had the others' addresses.
        rest_seconds: From then on until rank 0 told of the membership.
        num_requests: Asked of the rendezvous server.
        processor_seconds: The driver's own processor time in all of that.
    """

    rendezvous_id: int
    return_seconds: float = 0.0
    address_seconds: float = 0.0
    rest_seconds: float = 0.0
    num_requests: int = 0
    processor_seconds: float = 0.0


DRAINED = "drained"


class WorkerQuarantined(Message, frozen=True):
    """A slot runs no worker any more although nodes.yaml has it.

    Attributes:
        worker: Whose slot.
        reason: In words; `DRAINED`: somebody wanted it so.
    """

    worker: WorkerId
    reason: str


class GuardReported(Message, frozen=True):
    """The guard has seen something at a device, or has done something about it.

    Attributes:
        what: `drained`: its workers are let go; `refused`: they should be, and must not; `alerted`:
            it is told only; `returned`: they are started again; `ended`: an alert or a refusal is
            over; `silent`: it is not heard of any more, and everything stays as it is.
        node: Where the device is; one of the nodes, if several are one machine.
        device: Such as `GPU 0`, or `processors`.
        uuid: Of a GPU; empty: not told.
        reason: One of `core.guard.limits.REASONS`; empty for `silent`.
        words: All of it in one line for people.
        workers: That it is about.
        is_new: Whether an episode begins with it.
        num_drained: Devices whose workers are away because of the guard, from now on.
        num_refused: Devices whose workers should be away, from now on.
        is_lasting: Whether it does not end by itself.
    """

    what: Literal["drained", "refused", "alerted", "returned", "ended", "silent"]
    node: str
    device: str
    words: str
    uuid: str = ""
    reason: str = ""
    workers: tuple[WorkerId, ...] = ()
    is_new: bool = False
    num_drained: int = 0
    num_refused: int = 0
    is_lasting: bool = False


class SetAsideReported(Message, frozen=True):
    """Members without samples are left out, or take part again.

    Attributes:
        what: `tried`: they are let go, to see whether the others are faster; `set aside`: these
            are, so they stay away; `returned`: they are started again.
        step: Last step that it is based on.
        workers: That it is about.
        words: All of it in one line for people.
        with_seconds: Median duration of a step with them; NaN: not compared.
        without_seconds: The same without them.
    """

    what: Literal["tried", "set aside", "returned"]
    step: int
    workers: tuple[WorkerId, ...]
    words: str
    with_seconds: float = math.nan
    without_seconds: float = math.nan


class PlacementTried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of nodes, as a trial has predicted and measured it.

    Attributes:
        nodes: Their names, sorted.
        verdict: What became of it, in words; empty: the trial was not over.
        predicted_low: Samples per second at least, before it was measured; NaN: not predicted.
        predicted_high: At most.
        rounds: In which it was measured, each once.
        samples_per_second: What was measured in each of them, as a median.
        exchanges: The same of each exchange of each of them; empty: not told.
        num_steps: In all of them.
        num_void: Times that it was tried in vain.
        cost_per_sample: In any currency; NaN: a node of it has no price, or it was not measured.
        joules_per_sample: Of its own nodes; NaN: the power of one was not measured.
    """

    nodes: tuple[str, ...]
    verdict: str = ""
    predicted_low: float = math.nan
    predicted_high: float = math.nan
    rounds: tuple[int, ...] = ()
    samples_per_second: tuple[float, ...] = ()
    exchanges: tuple[tuple[float, ...], ...] = ()
    num_steps: int = 0
    num_void: int = 0
    cost_per_sample: float = math.nan
    joules_per_sample: float = math.nan


class TrialReported(Message, frozen=True):
    """A trial of placements is over.

    Attributes:
        step: Last step that it is based on; -1: none.
        is_complete: Whether it has come to its end, and not the job before it.
        goal: By what the placements were compared: `speed`, `money` or `energy`.
        words: How it ended, in one line for people.
        model: As in `WorkersJoined`.
        global_batch_size: Samples per optimizer step; 0: the trial had not begun.
        workers: All who took part, in rank order.
        devices: What each of them computes on; empty: not told.
        placements: What was found, measured ones and the fastest of them first.
    """

    step: int
    is_complete: bool
    goal: str
    words: str
    model: str = ""
    global_batch_size: int = 0
    workers: tuple[WorkerId, ...] = ()
    devices: tuple[str, ...] = ()
    placements: tuple[PlacementTried, ...] = ()


class Decided(Message, frozen=True):
    """A decision of the balancer, as in `core.balance.hysteresis`; workers in rank order."""

    rendezvous_id: int
    step: int
    action: str
    reason: str
    proposed: tuple[int, ...] = ()
    current_seconds: float = math.nan
    proposed_seconds: float = math.nan
    threshold_ratio: float = math.nan
    changed: dict[str, float] = msgspec.field(default_factory=dict)


class StragglerReported(Message, frozen=True):
    """A worker has become slower than it should be, or is well again.

    Attributes:
        step: Last step that it is based on.
        worker: Who.
        is_slow: Whether it is slow from now on.
        speed_ratio: Its speed / what it should be, relative to the median; NaN: unmeasured.
        cause: One of `CAUSES`, or None where it is not slow.
        since_step: First step of this state; -1: not known.
        causes: Cause to the part of the lost time that it accounts for, the largest first: one, or
            two that account for nearly all together; empty: not known.
    """

    step: int
    worker: WorkerId
    is_slow: bool
    speed_ratio: float
    cause: str | None
    since_step: int = -1
    causes: dict[str, float] = msgspec.field(default_factory=dict)


class StallReported(Message, frozen=True):
    """Nobody takes a step any more, or the training goes on.

    Attributes:
        step: Steps applied.
        is_stalled: Whether it stands from now on.
        seconds: Since the last step; where it goes on: for how long it stood.
        workers: Whom the others wait for; empty: all are in a reduction.
        phases: Of each of them: as in `Heartbeat`, or `silent`.
    """

    step: int
    is_stalled: bool
    seconds: float
    workers: tuple[WorkerId, ...] = ()
    phases: tuple[str, ...] = ()


class ClockMeasured(Message, frozen=True):
    """How far a worker's clock is off.

    Attributes:
        worker: Whose.
        offset_seconds: What it shows more than the driver's; negative: it is behind.
        uncertainty_seconds: The true offset is within this of it.
    """

    worker: WorkerId
    offset_seconds: float
    uncertainty_seconds: float


class TokenFileReported(Message, frozen=True):
    """A file with a token for the page cannot be used, so nobody has that token; or it can again.

    Attributes:
        words: Which file, and what is wrong with it, in one line for people.
    """

    words: str


class RunEnded(Message, frozen=True):
    """A job has ended.

    Attributes:
        exit_code: Of the command line.
        reason: In words.
    """

    exit_code: int
    reason: str


DriverEvent = (
    RunStarted
    | NodesPriced
    | EpochBegan
    | WorkerStarted
    | WorkerExited
    | MembersMet
    | WorkerQuarantined
    | GuardReported
    | SetAsideReported
    | TrialReported
    | Decided
    | StragglerReported
    | StallReported
    | Judged
    | ClockMeasured
    | NodeEquipped
    | NodeSampled
    | OwnerSeen
    | BatchPlan
    | TokenFileReported
    | RunEnded
)
Event = (
    DriverEvent
    | Ready
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
    | StalenessEnded
    | StateDivided
    | SessionsWanted
    | Finished
    | Crashed
)
"""Everything that a run's history is made of."""
