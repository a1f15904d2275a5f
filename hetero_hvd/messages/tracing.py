"""Windows in which everything that a worker does is recorded, on demand."""

from __future__ import annotations

from hetero_hvd.messages.identity import Message, WorkerId


class TraceRequested(Message, frozen=True):
    """Record the next steps. Sent by the driver.

    Attributes:
        num_steps: So many, from the next one on.
        profiler: Whether with torch's profiler.
        timeline: Whether with Horovod's timeline; rank 0 alone writes one.
    """

    num_steps: int
    profiler: bool
    timeline: bool


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
