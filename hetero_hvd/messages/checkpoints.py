"""What the worker that keeps the state of the training tells of it."""

from __future__ import annotations

from hetero_hvd.messages.identity import Message


class CheckpointWritten(Message, frozen=True):
    """A state of the training is on disk as a whole. Sent by who has written it.

    Attributes:
        step: Applied steps of that state.
        path: Where it is.
        num_bytes: Its size.
        metrics: The results of the evaluation that it was kept for; empty: it was time for one.
        is_best: Whether it is the best one so far by the metric that the job names.
        trainer: Whose state it is: which `Trainer` of the script, from 1.
    """

    step: int
    path: str
    num_bytes: int
    metrics: dict[str, float]
    is_best: bool
    trainer: int = 1


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
