"""Epochs that a script leaves before their end, or for which it comes too late."""

from __future__ import annotations

import logging

from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)


def check_epoch(epoch: int, num_idle: int | None, num_workers: int) -> None:
    """The script has left an epoch before its last step: all workers must have done so alike.

    Args:
        epoch: Which.
        num_idle: Workers that do not run the body of the loop at this step; None: no batch was
            asked for.
        num_workers: All workers.

    Raises:
        UserError: Some workers cannot have done so.
    """
    if num_idle is None:
        _refuse_without_step(epoch)
    elif num_idle:
        _refuse_where_idle(num_idle, num_workers)


def warn_if_trained(done: int, num_epochs: int) -> None:
    """Say so if as many epochs are trained as are asked for, or more.

    Args:
        done: Epochs trained.
        num_epochs: That the script asks for.
    """
    if done >= max(num_epochs, 1):
        logger.warning(
            "epochs trained already: %d; asked for: %d in all: nothing is left to do",
            done,
            num_epochs,
        )


def refuse_left_early(mode: str) -> None:
    """Refuse to leave an epoch in a mode in which workers are at different places of it.

    Raises:
        UserError: Always; says what to do.
    """
    raise UserError(
        f"{mode}: the loop over trainer.batches() was left before its end, where workers are at "
        "different places: run it to its end"
    )


def _refuse_without_step(epoch: int) -> None:
    """Refuse an epoch in which no batch was asked for.

    Raises:
        UserError: Always; says what to do.
    """
    raise UserError(
        f"epoch {epoch} ended without a step: take the batches from trainer.batches() and give "
        "each to trainer.step (to evaluate only, leave the loop over trainer.epochs() with break)"
    )


def _refuse_where_idle(num_idle: int, num_workers: int) -> None:
    """Refuse to leave an epoch where some workers do not run the body of the loop.

    Raises:
        UserError: Always; says what to do.
    """
    raise UserError(
        f"the epoch was left early: {num_idle} of {num_workers} workers have no part of this "
        "step and do not run the body of the loop over trainer.batches(): leave it where all "
        "have a part"
    )
