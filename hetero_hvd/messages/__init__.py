"""The records that cross a process boundary or are kept of a run, and nothing else.

All are frozen, compare by value and hold plain numbers and strings, so that a recorded run can be
replayed through `core`. On the wire they are MessagePack (NaN survives, unlike in JSON) with the
type's name as tag; decoding checks every field's type and raises `msgspec.ValidationError` on
anything else.
"""

from hetero_hvd.messages.causes import BOUND_BY, CAUSES, SLOW_BY, Bound, Cause, FindingKind, SlowBy
from hetero_hvd.messages.events import (
    ClockMeasured,
    Decided,
    DriverEvent,
    Event,
    RunEnded,
    RunStarted,
    StallReported,
    StragglerReported,
    WorkerExited,
    WorkerQuarantined,
    WorkerStarted,
)
from hetero_hvd.messages.from_driver import (
    Admit,
    BatchPlan,
    ClockAsked,
    FromDriver,
    MemberLost,
    ResetRequested,
    Stop,
    TraceRequested,
)
from hetero_hvd.messages.from_worker import (
    ClockTold,
    Crashed,
    Entered,
    Evaluated,
    Finished,
    FromWorker,
    Heartbeat,
    Leaving,
    MicroBatchRaised,
    OutOfMemory,
    Ready,
    Recovered,
    ScriptEnded,
    StalenessEnded,
    StepsTimed,
    WorkersJoined,
)
from hetero_hvd.messages.history import event_from_json, event_to_json
from hetero_hvd.messages.identity import NODE_NAME, Message, WorkerId
from hetero_hvd.messages.log import MARK as LOG_MARK
from hetero_hvd.messages.log import LogRecord
from hetero_hvd.messages.phases import (
    DEVICE_PHASES,
    OWN_PHASES,
    PHASES,
    STEP_PARTS,
    Phase,
    StepPart,
)
from hetero_hvd.messages.profile import (
    CollectivesTimed,
    CommMeasured,
    DeviceUsed,
    OperationMeasured,
    OperationTiming,
    PhasesTimed,
    TraceWritten,
)
from hetero_hvd.messages.timing import StepTiming
from hetero_hvd.messages.verdicts import Finding, Judged

__all__ = [
    "BOUND_BY",
    "CAUSES",
    "DEVICE_PHASES",
    "LOG_MARK",
    "NODE_NAME",
    "OWN_PHASES",
    "PHASES",
    "SLOW_BY",
    "STEP_PARTS",
    "Admit",
    "BatchPlan",
    "Bound",
    "Cause",
    "ClockAsked",
    "ClockMeasured",
    "ClockTold",
    "CollectivesTimed",
    "CommMeasured",
    "Crashed",
    "Decided",
    "DeviceUsed",
    "DriverEvent",
    "Entered",
    "Evaluated",
    "Event",
    "Finding",
    "FindingKind",
    "Finished",
    "FromDriver",
    "FromWorker",
    "Heartbeat",
    "Judged",
    "Leaving",
    "LogRecord",
    "MemberLost",
    "Message",
    "MicroBatchRaised",
    "OperationMeasured",
    "OperationTiming",
    "OutOfMemory",
    "Phase",
    "PhasesTimed",
    "Ready",
    "Recovered",
    "ResetRequested",
    "RunEnded",
    "RunStarted",
    "ScriptEnded",
    "SlowBy",
    "StalenessEnded",
    "StallReported",
    "StepPart",
    "StepTiming",
    "StepsTimed",
    "Stop",
    "StragglerReported",
    "TraceRequested",
    "TraceWritten",
    "WorkerExited",
    "WorkerId",
    "WorkerQuarantined",
    "WorkerStarted",
    "WorkersJoined",
    "event_from_json",
    "event_to_json",
]
