"""Passes of the script's loss function that are thrown away, to learn how long they take here.

A worker of which nothing is known would be given the same share as all others, and they would wait
for it until its first steps are measured. It computes a few samples of its first part instead. The
others wait for that, too: so a slow device computes fewer than it is asked for.
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

LIMIT_SECONDS = 2.0
"""So long a measurement may take; a pass of the fewest samples is computed in any case."""

STEADY_SECONDS = 0.01
"""Shorter passes are computed again: the first one of its size finds memory and kernels."""


class Calibration:
    """Measures a worker by the part of a step that it has; nothing of it stays.

    Args:
        step: That has begun.
        part: What this worker has of it.
        loss_function: The script's.
        batch: The part's, as the script gives it.
        undivided: Samples that are never split, >= 1.
    """

    def __init__(
        self,
        step: SynchronousStep,
        part: Slice,
        loss_function: Callable[..., Loss],
        batch: Sequence[Any],
        *,
        undivided: int = 1,
    ) -> None:
        self._step = step
        self._part = part
        self._loss_function = loss_function
        self._batch = batch
        self._undivided = undivided
        self._last: PassTiming | None = None
        self._is_told = False

    def measure(self, num_samples: int) -> tuple[PassTiming, ...]:
        """Compute so many samples of the part, or as many as it has and as are done in time.

        Returns:
            How many it were, and in how many seconds; nothing where they cannot be computed, for
            lack of memory or because the loss function does not take so few, or were not in time.
        """
        earlier, failure = self._last, ""
        before = randomness()
        try:
            self._grow(self._whole(num_samples), time.perf_counter() + LIMIT_SECONDS)
        except Exception as error:  # noqa: BLE001 - what is wrong with the script the step will show
            failure = first_line(error)
        finally:
            self._step.forget_trial()
            restore_randomness(before)
        if failure:  # only here are the frames gone that held the tensors
            free_memory()
            self._tell(failure)
        found = self._last
        return () if found is None or found is earlier else (found,)

    def _tell(self, failure: str) -> None:
        """Say it once to people, if nothing at all could be measured."""
        is_news = self._last is None and not self._is_told
        self._is_told = self._is_told or is_news
        level = logging.WARNING if is_news else logging.INFO
        logger.log(level, "could not measure itself before its first step: %s", failure)

    def _grow(self, most: int, ends_at: float) -> None:
        """A pass of so many samples, after a first one that loads libraries and fills caches."""
        known = self._last
        if known is None:
            fewest = self._whole(FEWEST)
            known = self._take(fewest)
            if self._in_time(known, ends_at) < most:  # slow, or only its first pass was
                known = self._last = self._take(fewest)
        size = min(most, self._in_time(known, ends_at))
        if size < self._whole(FEWEST):
            return
        began = time.perf_counter()
        self._last = self._take(size)
        if time.perf_counter() - began < STEADY_SECONDS:
            self._last = self._take(size)

    def _whole(self, num_samples: int) -> int:
        """At least so many samples, in whole pieces, as far as the part goes."""
        pieces = -(-max(FEWEST, num_samples) // self._undivided)
        return min(pieces * self._undivided, self._part.num_samples)

    def _in_time(self, known: PassTiming, ends_at: float) -> int:
        """Samples that are computed until then, at the speed of an earlier pass."""
        seconds = max(0.0, ends_at - time.perf_counter())
        num_samples = int(known.num_samples * seconds / known.seconds)
        return num_samples // self._undivided * self._undivided

    def _take(self, num_samples: int) -> PassTiming:
        """Passes over the first samples."""
        part = self._part._replace(num_samples=num_samples)
        _, batch = next(split(self._batch, num_samples=self._part.num_samples, size=num_samples))
        began = time.perf_counter()
        self._step.try_passes(self._loss_function, batch, part)
        synchronize(self._step.passes.device)
        self._step.passes.hold(num_samples)
        return PassTiming(num_samples, time.perf_counter() - began)
