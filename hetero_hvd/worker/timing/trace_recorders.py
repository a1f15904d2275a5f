"""One window of recording each: with torch's profiler, or with Horovod's timeline."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

import torch

from hetero_hvd.worker.accelerator import profiler_activities
from hetero_hvd.worker.comm.instruments import HorovodIntrospection

MAX_BYTES = 64 * 2**20
"""Of one file; viewers in browsers take no more with pleasure."""

MAX_SECONDS = 20.0
"""Of one window: torch keeps all of it in memory."""


class TraceRecorder(Protocol):
    """A recording under way; all is called between two steps."""

    kind: str
    path: Path

    def is_full(self) -> bool:
        """Whether it has to end now."""

    def close(self) -> None:
        """End it, and write the file."""


class ProfilerWindow:
    """What torch does on the host and the GPU, as a compressed Chrome trace (Perfetto reads it).

    Args:
        path: Of the file.
    """

    kind = "profiler"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._profiler = torch.profiler.profile(activities=profiler_activities())
        self._profiler.start()

    def is_full(self) -> bool:
        """Its size is not known before its end; the time is limited instead."""
        return False

    def close(self) -> None:
        """Write it; compressed, because its name ends so."""
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(self.path))


class TimelineWindow:
    """What Horovod does with each tensor, as a Chrome trace.

    Args:
        path: Of the file.
        instruments: Of the rendezvous.
    """

    kind = "timeline"

    def __init__(self, path: Path, instruments: HorovodIntrospection) -> None:
        self.path = path
        self._instruments = instruments
        instruments.start_timeline(path)

    def is_full(self) -> bool:
        """Horovod writes as it goes."""
        return self.path.exists() and self.path.stat().st_size > MAX_BYTES

    def close(self) -> None:
        """Horovod ends the file in a thread of its own, a moment later."""
        self._instruments.stop_timeline()


def mark(name: str) -> AbstractContextManager[object]:
    """Show a phase of the step in the trace under way."""
    return cast("AbstractContextManager[object]", torch.profiler.record_function(name))
