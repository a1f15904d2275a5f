"""Finds that this worker hangs in its own part of a step, while its heartbeat goes on.

A data loader that waits for a dead file server, or a kernel that never returns, stops everybody,
and the others cannot tell who is to blame: all they see is one reduction that does not end. But
each worker knows what it is doing itself.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from statistics import median

from hetero_hvd.exit_codes import EXIT_HUNG
from hetero_hvd.messages import OWN_PHASES
from hetero_hvd.probes.phase_clock import PhaseClock

logger = logging.getLogger(__name__)

DEADLINE_RATIO = 20.0
"""So many times the median of a phase: a cold cache or a page-in is not a hang."""

PASSES = frozenset({"forward", "backward"})
"""Their first time with tensors of a new size may compile or try out kernels for minutes."""

LEARNED_STEPS, FEWEST_STEPS = 50, 5


class Watchdog:
    """Knows how long each phase of a step may last here.

    `learn` belongs to the training thread; `overdue` may be called from any.

    Args:
        clock: Tells the phase under way.
        shape: Gives what the sizes of the tensors in the step under way depend on.
        floor_seconds: No phase is overdue earlier.
    """

    def __init__(
        self, clock: PhaseClock, shape: Callable[[], Hashable], floor_seconds: float
    ) -> None:
        self._clock = clock
        self._shape = shape
        self._passed: set[Hashable] = set()
        self._floor_seconds = floor_seconds
        self._steps = deque[Mapping[str, float]](maxlen=LEARNED_STEPS)

    def learn(self, seconds: Mapping[str, float]) -> None:
        """Take in the phases of one step; the mapping is kept, and must not change."""
        self._passed.add(self._shape())
        self._steps.append(seconds)

    def overdue(self, now_seconds: float) -> str | None:
        """What lasts too long, in words; None while all is well or nothing is known yet.

        Args:
            now_seconds: As `time.perf_counter` gives it.
        """
        phase, since_seconds = self._clock.current
        lasted_seconds = now_seconds - since_seconds
        steps = tuple(self._steps) if phase in OWN_PHASES else ()
        known = [seconds.get(phase, 0.0) for seconds in steps]
        is_first = phase in PASSES and self._shape() not in self._passed
        if len(known) < FEWEST_STEPS or is_first:
            return None
        limit_seconds = max(self._floor_seconds, DEADLINE_RATIO * median(known))
        if lasted_seconds < limit_seconds:
            return None
        return (
            f"{phase} has lasted {lasted_seconds:.0f} s, its limit is {limit_seconds:.0f} s "
            f"({DEADLINE_RATIO:g} times the median, at least {self._floor_seconds:g} s)"
        )

    def end_if_overdue(self) -> None:
        """End this process, with a trace of all threads: no other way leads out of such a read."""
        if fault := self.overdue(time.perf_counter()):
            logger.error("this worker hangs and ends itself: %s", fault)
            faulthandler.dump_traceback(all_threads=True)
            os._exit(EXIT_HUNG)
