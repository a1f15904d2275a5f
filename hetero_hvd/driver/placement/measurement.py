"""A job that measures one setting of its trainer, and ends."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_hvd.core.membership.set_aside import counts_in_full
from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.messages import BatchPlan
from hetero_hvd.messages.launch import TriedOptions

WARM_UP = 4
"""Exchanges that do not count, beside the first one: the shares settle."""

MIN_EXCHANGES = 3


class Measurement:
    """Observes the bus. Used in the loop's thread.

    Args:
        options: What is tried.
        num_steps: So many are measured, at least.

    Attributes:
        samples_per_second: What was measured; NaN: the job has ended before.
        global_batch_size: Samples per step; 0: not told.
        end: Ends the job.
    """

    def __init__(self, options: TriedOptions, num_steps: int) -> None:
        self.options = options
        self.samples_per_second = math.nan
        self.global_batch_size = 0
        self.end: Callable[[JobResult], None] = lambda _: None
        self._num_steps = num_steps
        self._num_seen = 0
        self._tables: list[StepTable] = []

    @property
    def is_of_options(self) -> bool:
        """Whether it tries anything, so that what is wrong may be wrong of that alone."""
        return self.options != TriedOptions()

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus. Another plan begins anew."""
        if isinstance(event, BatchPlan):
            self._tables.clear()
        if not isinstance(event, StepTable) or not counts_in_full(event):
            return
        self.global_batch_size = event.joined.global_batch_size
        self._num_seen += 1
        if self._num_seen > WARM_UP:
            self._tables.append(event)
        steps = sum(table.num_steps for table in self._tables)
        if len(self._tables) >= MIN_EXCHANGES and steps >= self._num_steps:
            seconds = math.fsum(table.num_steps * table.step_seconds for table in self._tables)
            samples = sum(table.num_steps * table.samples_per_step for table in self._tables)
            self.samples_per_second = samples / seconds
            self.end(JobResult(0, f"measured: {self.samples_per_second:.4g} samples/s"))
