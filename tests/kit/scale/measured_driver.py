"""A driver whose loop is timed: `python -m tests.kit.scale.measured_driver FOLDER`.

The job is that of FOLDER/nodes.yaml; its run goes to FOLDER/out, and what was measured, as it
happens, to FOLDER/loop.jsonl.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from hetero_hvd.config.nodes_file import NodesFile
from hetero_hvd.driver.job import Job
from hetero_hvd.driver.output.console import Console
from hetero_hvd.run.records.run_folder import run_folder
from hetero_hvd.security import descriptors

WORTH_NOTING_SECONDS = 0.002
NOTE_SECONDS = 0.25


class TimedSelector(selectors.EpollSelector):
    """Notes how long the loop does something between two waits: others wait for so long.

    Args:
        notes: Where to.
    """

    def __init__(self, notes: TextIO) -> None:
        super().__init__()
        self._notes = notes
        self._woke_at_seconds = time.monotonic()
        self._used_seconds = time.thread_time()
        self._next_note_at_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Called by the loop when it has nothing to do."""
        now, used = time.monotonic(), time.thread_time()
        stall_seconds, processor_seconds = now - self._woke_at_seconds, used - self._used_seconds
        if processor_seconds >= WORTH_NOTING_SECONDS:
            self._note(stall_seconds=stall_seconds, processor_seconds=processor_seconds)
        if now >= self._next_note_at_seconds:
            self._next_note_at_seconds = now + NOTE_SECONDS
            times = os.times()
            self._note(used_seconds=times.user + times.system)
        found = super().select(timeout)
        self._woke_at_seconds = time.monotonic()
        self._used_seconds = time.thread_time()
        return found

    def _note(self, **figures: Any) -> None:  # noqa: ANN401
        self._notes.write(json.dumps({"at_seconds": time.monotonic(), **figures}) + "\n")


async def _run(folder: Path, console: Console) -> int:
    nodes_file = NodesFile([folder / "nodes.yaml"], {}, {"output": str(folder / "out")})
    with run_folder(str(folder / "out"), None) as place:
        job = Job(nodes_file, ("train.py",), place, console)
        result = await job.run()
    return result.exit_code


def main() -> int:
    """Run the job; gives its exit code."""
    folder = Path(sys.argv[1])
    descriptors.raise_limit()
    console = Console()
    with (folder / "loop.jsonl").open("w") as notes:
        selector = TimedSelector(notes)
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            code = runner.run(_run(folder, console))
    console.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
