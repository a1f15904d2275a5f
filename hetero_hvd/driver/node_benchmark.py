"""Benchmarks all slots of a cluster at once, each by itself; what is learnt starts the next job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.benchmark import fit, is_valid
from hetero_hvd.driver.output.split_lines import LineSplitter
from hetero_hvd.driver.workers.gpu_counts import count_gpus
from hetero_hvd.driver.workers.launch_order import LaunchOrder, launch_order
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.benchmark import (
    BenchmarkLine,
    BenchmarkProgress,
    DeviceMeasured,
    ModelMeasured,
)
from hetero_hvd.messages.launch import BenchmarkSettings, WorkerLaunch
from hetero_hvd.run.tracking.speed_store import CurveStore

MARK = b"hetero-hvd-benchmark "
MODULE = ("python", "-m", "hetero_hvd.worker.benchmark")
PATIENCE, START_SECONDS = 4.0, 120.0
"""A slot that has not ended after so many times what it may take, and the time of its start, is
given up."""

FEWEST_SIZES = 2
MAX_TAIL_LINES = 20
MAX_LINE_BYTES = 2**20

Say = Callable[[WorkerId, str], None]


@dataclass(kw_only=True)
class Measured:
    """What is known of one slot.

    Attributes:
        worker: The slot.
        device: What its device can do; None if it did not tell.
        model: How fast it trains the model; None without a script, or if it did not tell.
        exit_code: Of the process; None: given up.
        tail: Last lines of what the script printed.
    """

    worker: WorkerId
    device: DeviceMeasured | None = None
    model: ModelMeasured | None = None
    exit_code: int | None = None
    tail: list[str] = field(default_factory=list)


class _Lines:
    """Sorts a process's output: our lines, and the script's."""

    def __init__(self, found: Measured, say: Say) -> None:
        self._found = found
        self._say = say
        self._decoder = msgspec.json.Decoder(BenchmarkLine)

    def take(self, line: bytes) -> None:
        """The next line."""
        if line.startswith(MARK):
            try:
                self._understood(self._decoder.decode(line.removeprefix(MARK)))
            except msgspec.DecodeError as error:
                self._say(self._found.worker, f"says something that is not understood: {error}")
            return
        self._found.tail.append(line.decode(errors="replace"))
        del self._found.tail[:-MAX_TAIL_LINES]

    def _understood(self, message: BenchmarkProgress | DeviceMeasured | ModelMeasured) -> None:
        match message:
            case BenchmarkProgress():
                self._say(self._found.worker, message.text)
            case DeviceMeasured():
                self._found.device = message
            case ModelMeasured():
                self._found.model = message


async def benchmark(
    cluster: ClusterConfig,
    command: tuple[str, ...],
    *,
    seconds: float,
    is_fresh: bool,
    say: Say,
) -> list[Measured]:
    """Measure all slots at once, so that those of one machine share it as they will in training.

    Args:
        cluster: The nodes.
        command: The user's script and its arguments; empty: the devices only.
        seconds: What each may take.
        is_fresh: Measure again what was measured before.
        say: Is told of progress.
    """
    launch = WorkerLaunch(benchmark=BenchmarkSettings(seconds=seconds, is_fresh=is_fresh))
    words = (*MODULE, *command)
    slots = [
        (node, slot)
        for node in cluster.nodes
        for slot in range(
            node.resolved_slots(0 if node.declared_slots is not None else await count_gpus(node))
        )
    ]
    patience = START_SECONDS + PATIENCE * seconds
    tasks = []
    for node, slot in slots:
        order = launch_order(node, slot, words, {}, launch)
        tasks.append(_measure(node, slot, order, patience, say))
    return list(await asyncio.gather(*tasks))


async def _measure(
    node: NodeConfig, slot: int, order: LaunchOrder, patience: float, say: Say
) -> Measured:
    found = Measured(worker=WorkerId(node.name, slot))
    output = LineSplitter(_Lines(found, say).take, max_bytes=MAX_LINE_BYTES)
    try:
        process = await WorkerProcess.start(node, order, output)
    except OSError as error:
        found.tail.append(f"cannot be started: {error}")
        return found
    try:
        found.exit_code = await asyncio.wait_for(asyncio.shield(process.exited), patience)
    except TimeoutError:
        found.tail.append(f"gave no answer in {patience:.0f} s")
    finally:
        if not process.exited.done():
            process.kill()
            await process.exited
    return found


def curve_of(model: ModelMeasured) -> SpeedProfile | None:
    """What to start the next job with: the curve through what is valid; None if that is too little.

    A curve through noise would be worse than to begin with equal shares.
    """
    valid = [
        (size.local_batch_size, size.busy_seconds)
        for size in model.sizes
        if is_valid(size.spread_ratio)
    ]
    if len(valid) < min(FEWEST_SIZES, len(model.sizes)) or not valid:
        return None
    shares = [share for share, _ in valid]
    return SpeedProfile(
        model=fit(valid, model.micro_batch_size),
        largest_share=max(shares),
        smallest_share=min(shares) if len(shares) > 1 else 0,
    )


def keep(
    cluster: ClusterConfig, found: list[Measured]
) -> tuple[Path, dict[WorkerId, SpeedProfile]]:
    """Put the curves where the next job looks for them.

    Returns:
        The file, and what was put into it.
    """
    path = Path(cluster.job.output or Path("runs", "next")).parent / "curves.json"
    curves = {}
    for one in found:
        curve = curve_of(one.model) if one.model is not None else None
        if one.model is not None and curve is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            store = CurveStore(path, cluster.nodes)
            store.remember(one.worker, curve, device=one.model.device, model=one.model.model)
            curves[one.worker] = curve
    return path, curves
