"""A step whose memory does not suffice is done in smaller pieces: the same step, the same batch.

While this worker tries again all others wait for it in the reduction, as for any slow one. What it
had added up is dropped before, so that nothing is counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hetero_hvd.core.view.live_words import out_of_memory_in_words
from hetero_hvd.errors import UserError, first_line
from hetero_hvd.messages import OutOfMemory
from hetero_hvd.worker.accelerator import OUT_OF_MEMORY_WORDS
from hetero_hvd.worker.micro_batch.memory_meter import free_memory
from hetero_hvd.worker.micro_batch.split import Loss
from hetero_hvd.worker.recovery.elastic_state import ElasticState
from hetero_hvd.worker.session.self_description import describe_device
from hetero_hvd.worker.session.worker_context import device
from hetero_hvd.worker.step.training_step import Retry, TrainingStep

logger = logging.getLogger(__name__)

WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    *OUT_OF_MEMORY_WORDS,
)
"""Of RuntimeErrors that mean what `torch.OutOfMemoryError` means: from the CPU's allocator, and
from the accelerators' libraries."""

HINT = (
    "lower what one sample needs (its size or the model's), use activation checkpointing "
    "(torch.utils.checkpoint with use_reentrant=False), a lower precision (torch.autocast) or, on "
    "three workers or more, shard_optimizer='auto'"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)


def contribute(
    step: TrainingStep,
    state: ElasticState,
    loss_function: Callable[..., Loss],
    batch: Sequence[Any],
) -> bool:
    """Forward and backward passes of this worker's part of a step, as small as they have to be.

    Args:
        step: That has begun.
        state: Of this worker.
        loss_function: The script's.
        batch: The part.

    Returns:
        Whether the part is computed; if not, all parts of the step are handed out again.

    Raises:
        UserError: Not even one sample fits.
    """
    while True:
        try:
            _pass(step, loss_function, batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            words = first_line(error)
        else:
            return True
        # Only here, where the error is gone, are the frames that held the tensors.
        free_memory()
        sizing = step.passes.sizing
        failed = sizing.size
        retry = step.try_smaller()
        if retry is Retry.IMPOSSIBLE:
            raise UserError(_does_not_fit(state, sizing.smallest, words))
        _tell(state, failed, sizing.largest, words)
        if retry is not Retry.PART:
            return retry is Retry.MEMBERSHIP


def _pass(step: TrainingStep, loss_function: Callable[..., Loss], batch: Sequence[Any]) -> None:
    for micro_batch in step.micro_batches(batch):
        step.backward(step.compute(loss_function, micro_batch))


def _tell(state: ElasticState, failed: int, largest: int, words: str) -> None:
    event = OutOfMemory(
        worker=state.context.settings.worker,
        step=state.position.applied_steps,
        micro_batch_size=failed,
        next_micro_batch_size=largest,
        error=words,
    )
    logger.warning("%s (%s)", out_of_memory_in_words(event), words)
    state.context.tell(event)


def _does_not_fit(state: ElasticState, smallest: str, words: str) -> str:
    where = f"{state.context.settings.worker} ({describe_device(device())})"
    return f"{where}: no memory for {smallest}: {words}; {HINT}"
