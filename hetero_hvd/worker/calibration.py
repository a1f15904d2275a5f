"""Passes of the script's loss function that are thrown away, to learn how long they take here.

A worker of which nothing is known would be given the same share as all others, and they would wait
for it until its first steps are measured. It computes a few samples of its first part instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from hetero_hvd.errors import first_line
from hetero_hvd.messages import PassTiming
from hetero_hvd.worker.accelerator import synchronize
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.micro_batch.memory_meter import free_memory
from hetero_hvd.worker.micro_batch.split import Loss, split
from hetero_hvd.worker.recovery.randomness import randomness, restore_randomness
from hetero_hvd.worker.synchronous.synchronous_step import SynchronousStep

logger = logging.getLogger(__name__)

FEWEST = 2
"""Samples in a pass, where there are so many: normalisation in training needs more than one."""

WARM_UP_RATIO = 1 / 4
"""Of the samples to measure: a first pass loads libraries and fills caches."""


class Calibration:
    """Measures a worker by the part of a step that it has; nothing of it stays.

    Args:
        step: That has begun.
        part: What this worker has of it.
        loss_function: The script's.
        batch: The part's, as the script gives it.
    """

    def __init__(
        self,
        step: SynchronousStep,
        part: Slice,
        loss_function: Callable[..., Loss],
        batch: Sequence[Any],
    ) -> None:
        self._step = step
        self._part = part
        self._loss_function = loss_function
        self._batch = batch
        self._is_warm = False

    def measure(self, num_samples: int) -> tuple[PassTiming, ...]:
        """Compute so many samples of the part, or all that it has.

        Returns:
            How many it were, and in how many seconds; nothing where they cannot be computed, for
            lack of memory or because the loss function does not take so few.
        """
        most = self._part.num_samples
        num_samples = min(max(FEWEST, num_samples), most)
        before = randomness()
        try:
            if not self._is_warm:
                self._take(min(max(FEWEST, round(num_samples * WARM_UP_RATIO)), most))
                self._is_warm = True
            return (PassTiming(num_samples, self._take(num_samples)),)
        except Exception as error:  # noqa: BLE001 - what is wrong with the script the step will show
            logger.info("this worker has not measured itself: %s", first_line(error))
        finally:
            self._step.forget_trial()
            restore_randomness(before)
        free_memory()  # only here are the frames gone that held the tensors
        return ()

    def _take(self, num_samples: int) -> float:
        """Seconds for passes over the first samples."""
        part = self._part._replace(num_samples=num_samples)
        _, batch = next(split(self._batch, num_samples=self._part.num_samples, size=num_samples))
        began = time.perf_counter()
        self._step.try_passes(self._loss_function, batch, part)
        synchronize(self._step.passes.device)
        self._step.passes.hold(num_samples)
        return time.perf_counter() - began
