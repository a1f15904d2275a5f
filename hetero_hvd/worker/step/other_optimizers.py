"""Optimizers that a script steps beside the trainer: what they train goes apart on the workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

logger = logging.getLogger(__name__)

_thread = threading.local()


class OwnUpdate:
    """Whatever optimizers step meanwhile in this thread, they have gradients of all workers."""

    def __enter__(self) -> None:
        self._before = getattr(_thread, "is_own", False)
        _thread.is_own = True

    def __exit__(self, *_: object) -> None:
        _thread.is_own = self._before


@contextmanager
def told_of_other_steps(num_workers: Callable[[], int]) -> Iterator[None]:
    """Warn once if this thread steps an optimizer meanwhile that is not in an update of ours.

    Args:
        num_workers: Asked when that happens: one alone may do so.
    """
    thread, has_told = threading.get_ident(), False

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:  # noqa: ANN401 - of torch
        nonlocal has_told
        is_other = threading.get_ident() == thread and not getattr(_thread, "is_own", False)
        if has_told or not is_other or num_workers() < 2:  # noqa: PLR2004 - one is never apart
            return
        has_told = True
        sizes = [each.numel() for group in optimizer.param_groups for each in group["params"]]
        logger.warning(
            "%s with %d parameters is stepped outside of the trainer's steps: its gradients are "
            "those of this worker's samples alone, so that what it trains goes apart on the "
            "workers: train a further model by trainer.add_model",
            type(optimizer).__name__,
            sum(sizes),
        )

    hook = register_optimizer_step_post_hook(stepped)
    try:
        yield
    finally:
        hook.remove()
