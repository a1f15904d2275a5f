"""The records that cross a process boundary or are kept of a run, and nothing else.

All are frozen, compare by value and hold plain numbers and strings, so that a recorded run can be
replayed through `core`. On the wire they are MessagePack (NaN survives, unlike in JSON) with the
type's name as tag; decoding checks every field's type and raises `msgspec.ValidationError` on
anything else.
"""

from hetero_hvd.messages.events import (
    Decided,
    DriverEvent,
    Event,
    RunEnded,
    RunStarted,
    StragglerReported,
    WorkerExited,
    WorkerQuarantined,
    WorkerStarted,
)
from hetero_hvd.messages.from_driver import (
    Admit,
    BatchPlan,
    FromDriver,
    MemberLost,
    ResetRequested,
    Stop,
)
from hetero_hvd.messages.from_worker import (
    Crashed,
    Evaluated,
    Finished,
    FromWorker,
    Heartbeat,
    MicroBatchRaised,
    OutOfMemory,
    Ready,
    Recovered,
    StalenessEnded,
    StepsTimed,
    WorkersJoined,
)
from hetero_hvd.messages.identity import NODE_NAME, Message, WorkerId
from hetero_hvd.messages.timing import StepTiming

__all__ = [
    "NODE_NAME",
    "Admit",
    "BatchPlan",
    "Crashed",
    "Decided",
    "DriverEvent",
    "Evaluated",
    "Event",
    "Finished",
    "FromDriver",
    "FromWorker",
    "Heartbeat",
    "MemberLost",
    "Message",
    "MicroBatchRaised",
    "OutOfMemory",
    "Ready",
    "Recovered",
    "ResetRequested",
    "RunEnded",
    "RunStarted",
    "StalenessEnded",
    "StepTiming",
    "StepsTimed",
    "Stop",
    "StragglerReported",
    "WorkerExited",
    "WorkerId",
    "WorkerQuarantined",
    "WorkerStarted",
    "WorkersJoined",
]
