"""`hetero-hvd benchmark collectives`: starts the workers that measure, shows what they found."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.config import NodesFile
from hetero_hvd.core.bandwidth import bus_factor
from hetero_hvd.errors import JobError
from hetero_hvd.measure.curves import Curve, plot
from hetero_hvd.messages import CommMeasured, OperationMeasured

GB = 1e9
KIB, MIB = 2**10, 2**20


def measure(nodes_file: NodesFile, plan: dict[str, Any], output: Path) -> CommMeasured:
    """Run the workers as a job, and read what they told.

    Args:
        nodes_file: The cluster; its job's output folder is `output`.
        plan: Fields of `comm_worker.Plan`.
        output: Folder of the job.

    Raises:
        JobError: Nothing was measured.
    """
    from hetero_hvd.driver.job import run_job  # noqa: PLC0415 - imports Horovod
    from hetero_hvd.driver.termination import Termination  # noqa: PLC0415
    from hetero_hvd.run.records.reader import read_record  # noqa: PLC0415

    command = ("python", "-m", "hetero_hvd.measure.comm_worker", json.dumps(plan))
    with Termination() as termination:
        code = run_job(nodes_file, command, termination=termination)
    found = [event for _, event in read_record(output).events if isinstance(event, CommMeasured)]
    if code or not found:
        raise JobError(f"nothing was measured: exit code {code}; see {output / 'logs'}")
    return found[-1]


def write(found: CommMeasured, folder: Path) -> None:
    """Leave comm.json and comm.svg in a folder."""
    num_workers = len(found.workers)
    facts = msgspec.to_builtins(found)
    for fields, entry in zip(facts["operations"], found.operations, strict=True):
        speed = entry.num_bytes / entry.median_seconds
        fields["algorithm_bytes_per_second"] = speed
        fields["bus_bytes_per_second"] = speed * bus_factor(entry.op, num_workers)
    facts["workers"] = list(map(str, found.workers))
    (folder / "comm.json").write_text(json.dumps(facts, indent=1) + "\n")
    curves: dict[str, Curve] = defaultdict(list)
    for entry in found.operations:
        if speed := _bus(entry, num_workers):
            curves[f"{entry.op} {entry.backend}"].append((float(entry.num_bytes), speed))
    title = f"Bus bandwidth of {num_workers} workers"
    (folder / "comm.svg").write_text(plot(title, curves, x="bytes", y="GB/s"))


def in_words(found: CommMeasured) -> Iterator[str]:
    """Lines for people: each operation at each size, then the links."""
    yield (
        "op             backend       size  times       min    median       p99    algbw    busbw"
        "  right"
    )
    yield f"{'':38}{'ms':>10}{'ms':>10}{'ms':>10}{'GB/s':>9}{'GB/s':>9}"
    for entry in found.operations:
        times = (entry.min_seconds, entry.median_seconds, entry.p99_seconds)
        yield (
            f"{entry.op:14} {entry.backend:7} {_size(entry.num_bytes):>10} {entry.count:>5}"
            + "".join(f"{seconds * 1e3:10.3f}" for seconds in times)
            + f"{entry.num_bytes / entry.median_seconds / GB:9.3g}"
            + f"{_bus(entry, len(found.workers)):9.3g}"
            + (f"  {entry.num_wrong} WRONG" if entry.num_wrong else "  yes")
        )
    yield ""
    yield f"links, GB/s from row to column, {_size(found.link_bytes)} each; - : not measured"
    names = [str(worker) for worker in found.workers]
    width = max(map(len, names)) + 2
    yield " " * width + "".join(f"{name:>{width}}" for name in names)
    for name, row in zip(names, found.links, strict=True):
        cells = (f"{speed / GB:.3g}" if speed else "-" for speed in row)
        yield f"{name:{width}}" + "".join(f"{cell:>{width}}" for cell in cells)


def is_right(operations: Sequence[OperationMeasured]) -> bool:
    """Whether every result was what it must be."""
    return not any(entry.num_wrong for entry in operations)


def show(found: CommMeasured, folder: Path) -> int:
    """Print it, leave the files; the exit code."""
    write(found, folder)
    for line in in_words(found):
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"\n{folder / 'comm.json'}  {folder / 'comm.svg'}\n")
    return 0 if is_right(found.operations) else 1


def _bus(entry: OperationMeasured, num_workers: int) -> float:
    return entry.num_bytes / entry.median_seconds * bus_factor(entry.op, num_workers) / GB


def _size(num_bytes: int) -> str:
    """Round sizes in their unit, others in bytes."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"
