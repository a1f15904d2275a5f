"""A job of a real driver with many workers that compute nothing, and what that driver did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tests.kit.checkout import CHECKOUT, variables
from tests.kit.processes import end
from tests.kit.scale.crowd_host import SHIM
from tests.kit.scale.fake_training import Script

LOOK_SECONDS, END_SECONDS = 0.25, 10.0


class CrowdError(Exception):
    """The job did not do what it should."""


@dataclass(kw_only=True)
class CrowdedRun:
    """What has happened.

    Attributes:
        exit_code: Of the driver.
        output: What it has said.
        events: Of the workers: `event`, `at_seconds` (monotonic) and more.
        loop: Of the driver's loop; see `measured_driver`.
        looks: Now and then: `at_seconds`, `memory_bytes`, `num_threads`, `num_fds` of the driver
            and `record_bytes` of its run.
        summary: Of the run.
    """

    exit_code: int
    output: str
    events: list[dict[str, Any]]
    loop: list[dict[str, Any]]
    looks: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def times_of(self, event: str) -> list[float]:
        """When it happened."""
        return [each["at_seconds"] for each in self.events if each["event"] == event]

    def used_seconds(self, since: float, until: float) -> float:
        """Processor time of the driver between two times, as of the notes nearest to these."""
        notes = [note for note in self.loop if "used_seconds" in note]

        def at(seconds: float) -> float:
            nearest = min(notes, key=lambda note: abs(note["at_seconds"] - seconds))
            return float(nearest["used_seconds"])

        return at(until) - at(since)

    def longest_stall(self, since: float, until: float) -> tuple[float, float]:
        """Of the loop, processor time and time."""
        found = [
            (note["processor_seconds"], note["stall_seconds"])
            for note in self.loop
            if "stall_seconds" in note and since <= note["at_seconds"] <= until
        ]
        return max(found, default=(0.0, 0.0))


def crowded_job(
    num_workers: int,
    script: Script,
    *,
    slots_per_node: int = 1,
    timeout_seconds: float = 300.0,
    settings: dict[str, Any] | None = None,
) -> CrowdedRun:
    """Run a job to its end.

    Args:
        num_workers: So many.
        script: What they do.
        slots_per_node: Workers of a node.
        timeout_seconds: For all of it.
        settings: Of the job.

    Raises:
        CrowdError: It has not ended in time.
    """
    with tempfile.TemporaryDirectory(prefix="crowd-") as place:
        folder = Path(place)
        _write_nodes(folder, num_workers, slots_per_node, settings or {})
        with _crowd(folder, script), (folder / "driver.txt").open("wb") as output:
            command = [sys.executable, "-m", "tests.kit.scale.measured_driver", str(folder)]
            driver = subprocess.Popen(
                command, cwd=folder, env=variables(), stdout=output, stderr=subprocess.STDOUT
            )
            try:
                looks = _watch(driver, folder, timeout_seconds)
            finally:
                end(driver, END_SECONDS)
        if keep := os.environ.get("KEEP_CROWD"):
            shutil.copytree(
                folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock*")
            )
        if looks is None:
            raise CrowdError((folder / "driver.txt").read_text(errors="replace")[-2000:])
        summary = folder / "out" / "summary.json"
        return CrowdedRun(
            exit_code=driver.returncode,
            output=(folder / "driver.txt").read_text(errors="replace"),
            events=_lines(folder / "events.jsonl"),
            loop=_lines(folder / "loop.jsonl"),
            looks=looks,
            summary=json.loads(summary.read_text()) if summary.exists() else {},
        )


def _write_nodes(folder: Path, num_workers: int, slots: int, settings: dict[str, Any]) -> None:
    shim = folder / "supervisor"
    path = str(folder / "crowd.socket")
    shim.write_text(SHIM.format(python=os.path.realpath(sys.executable), path=path))
    shim.chmod(0o700)
    nodes = [
        {"name": f"n{n}", "slots": slots, "devices": [], "python": str(shim)}
        for n in range(num_workers // slots)
    ]
    (folder / "nodes.yaml").write_text(json.dumps({"job": settings, "nodes": nodes}))


@contextmanager
def _crowd(folder: Path, script: Script) -> Iterator[None]:
    """The workers' process, listening."""
    listener = folder / "crowd.socket"
    words = [str(listener), msgspec.json.encode(script).decode(), str(folder / "events.jsonl")]
    with (folder / "crowd.txt").open("wb") as output:
        crowd = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.scale.crowd_host", *words],
            cwd=CHECKOUT,
            env=variables(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + END_SECONDS
        while not listener.exists():
            if crowd.poll() is not None or time.monotonic() > deadline:
                raise CrowdError((folder / "crowd.txt").read_text(errors="replace"))
            time.sleep(0.02)
        yield
    finally:
        end(crowd, END_SECONDS)


def _watch(
    driver: subprocess.Popen[bytes], folder: Path, timeout_seconds: float
) -> list[dict[str, Any]] | None:
    """Look at the driver until it ends; None: it has not ended in time."""
    looks: list[dict[str, Any]] = []
    deadline, process = time.monotonic() + timeout_seconds, psutil.Process(driver.pid)
    while driver.poll() is None:
        if time.monotonic() > deadline:
            return None
        try:
            with process.oneshot():
                looks.append(
                    {
                        "at_seconds": time.monotonic(),
                        "memory_bytes": process.memory_info().rss,
                        "num_threads": process.num_threads(),
                        "num_fds": process.num_fds(),
                        "record_bytes": _size_of(folder / "out"),
                    }
                )
        except psutil.Error:
            break
        time.sleep(LOOK_SECONDS)
    driver.wait()
    return looks


def _size_of(folder: Path) -> int:
    """Of the record: all files but the logs."""
    files: Sequence[os.DirEntry[str]] = list(os.scandir(folder)) if folder.exists() else []
    return sum(entry.stat().st_size for entry in files if entry.is_file())


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
