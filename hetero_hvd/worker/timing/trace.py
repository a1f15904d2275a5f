"""Begins and ends windows of recording between steps, when the job or somebody wants one."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hetero_hvd.messages import TraceRequested, TraceWritten
from hetero_hvd.messages.launch import TraceSettings
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.comm.horovod import HorovodCollective
from hetero_hvd.worker.session.worker_context import WorkerContext
from hetero_hvd.worker.timing.trace_recorders import (
    MAX_BYTES,
    MAX_SECONDS,
    ProfilerWindow,
    TimelineWindow,
    TraceRecorder,
    mark,
)

logger = logging.getLogger(__name__)

DEFAULT_STEPS, MAX_FILES = 5, 40
"""Of a window that a signal asks for; of one process in its life."""

CLOSED_SECONDS = 1.0
"""For Horovod's thread to end its file."""


class TraceControl:
    """The windows of one worker, one after the other.

    Args:
        config: What the driver says.
        clock: Its phases are shown in the traces.
    """

    def __init__(self, config: TraceSettings, clock: PhaseClock) -> None:
        self._config = config
        self._clock = clock
        self._wish: TraceRequested | None = None
        self._windows: list[TraceRecorder] = []
        self._problem = ""
        self._from_step = 0
        self._to_step = 0
        self._end_at = 0.0
        self._generation = 0
        self._num_files = 0
        self._is_listening = False

    def request(self, wish: TraceRequested) -> None:
        """Record from the next step on, or after the window that is open; from any thread."""
        self._wish = wish

    def step_applied(self, context: WorkerContext, step: int) -> None:
        """Called after each step: ends what is over, begins what is wanted.

        Args:
            context: Of this worker.
            step: Index of the step that has ended.
        """
        if not self._is_listening:
            self._is_listening = True
            self._listen(context)
        if self._windows and self._is_over(context, step):
            self.close(context, step)
        if self._windows or (self._wish is None and step + 1 != self._config.from_step):
            return
        wish, self._wish = self._wish or self._planned(context), None
        if wish is not None:
            self._open(wish, context, step + 1)

    def close(self, context: WorkerContext, step: int) -> None:
        """End the windows and tell the driver.

        Args:
            context: Of this worker.
            step: Index of the last step.
        """
        self._clock.marker = None
        windows, self._windows = self._windows, []
        for window in windows:
            written = self._written(window, context, step)
            logger.info("trace: %s %s", written.path, written.problem)
            context.tell(written)

    def _listen(self, context: WorkerContext) -> None:
        if context.client is not None:
            context.client.trace_with(self.request)
        is_free = signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        if is_free and threading.current_thread() is threading.main_thread():
            wish = TraceRequested(num_steps=DEFAULT_STEPS, profiler=True, timeline=True)
            signal.signal(signal.SIGUSR2, lambda *_: self.request(wish))

    def _planned(self, context: WorkerContext) -> TraceRequested | None:
        config = self._config
        is_chosen = not config.workers or str(context.settings.worker) in config.workers
        if not is_chosen and not config.timeline:
            return None
        num_steps = config.to_step - config.from_step
        return TraceRequested(num_steps=num_steps, profiler=is_chosen, timeline=config.timeline)

    def _open(self, wish: TraceRequested, context: WorkerContext, step: int) -> None:
        name = f"{context.settings.worker.node}-{context.settings.worker.slot}.step{step}"
        self._from_step = step
        self._to_step = step + wish.num_steps
        self._end_at = time.monotonic() + MAX_SECONDS
        self._problem = ""
        self._generation = context.collective.generation
        folder = Path(self._config.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for make in self._makers(wish, context, folder / name):
                if self._num_files >= MAX_FILES:
                    logger.warning("trace: %d files are the most of a process", MAX_FILES)
                    break
                self._windows.append(make())
                self._num_files += 1
        except (OSError, RuntimeError, ValueError) as error:  # torch's and Horovod's own
            logger.warning("trace: cannot be recorded: %s", error)
        if any(window.kind == "profiler" for window in self._windows):
            self._clock.marker = mark

    def _makers(
        self, wish: TraceRequested, context: WorkerContext, name: Path
    ) -> Iterator[Callable[[], TraceRecorder]]:
        if wish.profiler:
            yield lambda: ProfilerWindow(name.with_name(name.name + ".trace.json.gz"))
        collective = context.collective
        if wish.timeline and collective.rank == 0 and isinstance(collective, HorovodCollective):
            path = name.with_name(name.name + ".timeline.json")
            yield lambda: TimelineWindow(path, collective.instruments)

    def _is_over(self, context: WorkerContext, step: int) -> bool:
        if context.collective.generation != self._generation:
            self._problem = "the membership changed"
        elif time.monotonic() > self._end_at:
            self._problem = f"longer than {MAX_SECONDS:g} s"
        elif any(window.is_full() for window in self._windows):
            self._problem = f"larger than {MAX_BYTES} bytes"
        return bool(self._problem) or step + 1 >= self._to_step

    def _written(self, window: TraceRecorder, context: WorkerContext, step: int) -> TraceWritten:
        path, num_bytes, problem = str(window.path), 0, self._problem
        try:
            is_same = context.collective.generation == self._generation
            if window.kind == "profiler" or is_same:  # a reset has ended the timeline
                window.close()
            num_bytes = self._size_of(window)
            if num_bytes > MAX_BYTES:
                window.path.unlink()
                path, problem = "", f"{num_bytes} bytes are more than {MAX_BYTES}"
        except (OSError, RuntimeError, ValueError) as error:
            path, problem = "", str(error)
        return TraceWritten(
            worker=context.settings.worker,
            kind=window.kind,
            path=path,
            num_bytes=num_bytes,
            from_step=self._from_step,
            num_steps=step + 1 - self._from_step,
            problem=problem,
        )

    def _size_of(self, window: TraceRecorder) -> int:
        """Bytes of the file; Horovod's ends with a bracket once it is complete."""
        deadline = time.monotonic() + CLOSED_SECONDS
        while window.kind == "timeline" and time.monotonic() < deadline:
            with window.path.open("rb") as file:
                file.seek(max(0, window.path.stat().st_size - 1))
                if file.read(1) == b"]":
                    break
            time.sleep(0.002)
        return window.path.stat().st_size
