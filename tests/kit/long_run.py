"""A long run in fast motion: all that a job of several nodes records, through what records it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.core.step_table import StepTables
from hetero_hvd.messages import (
    BatchPlan,
    ClockMeasured,
    CollectivesTimed,
    Decided,
    DeviceSample,
    DeviceUsed,
    EpochBegan,
    Evaluated,
    Event,
    Judged,
    NodeSampled,
    NodesPriced,
    OperationTiming,
    PhasesTimed,
    Recovered,
    RunEnded,
    RunStarted,
    StepsTimed,
    StepTiming,
    WorkerExited,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.tracking.balancing import Balancing

WEEK_SECONDS = 7 * 86400.0
BEGIN_SECONDS = 1.7e9
EVENTS_PER_FLUSH = 4000


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """What happens in it.

    Attributes:
        num_steps: In all.
        seconds: That it takes.
        exchange_steps: Steps between two exchanges.
        num_nodes: With a worker and a GPU each.
        sample_seconds: Between two samples of a node.
        report_seconds: Between two reports of a worker about its collectives, phases and GPU.
        epoch_seconds: Of an epoch, which ends with an evaluation.
        reset_seconds: Between two losses of a worker.
    """

    num_steps: int = 10_000_000
    seconds: float = WEEK_SECONDS
    exchange_steps: int = 20
    num_nodes: int = 4
    sample_seconds: float = 1.0
    report_seconds: float = 2.0
    epoch_seconds: float = 600.0
    reset_seconds: float = 6 * 3600.0

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """In rank order."""
        return tuple(WorkerId(f"node{number}", 0) for number in range(self.num_nodes))

    def events(self) -> Iterator[tuple[float, Event]]:
        """All that is told, with its time."""
        workers = self.workers
        yield 0.0, RunStarted(run_id="week", command=("train.py",), nodes=(), settings={})
        yield 0.0, NodesPriced(per_hour={worker.node: 1.0 for worker in workers})
        for worker in workers:
            yield 0.0, WorkerStarted(worker=worker, host=f"{worker.node}-0", num_restarts=0)
        yield 0.0, self._joined(0)
        step_seconds = self.seconds / self.num_steps
        due = {"sample": 0.0, "report": 0.0, "epoch": 0.0, "reset": self.reset_seconds}
        every = {
            "sample": self.sample_seconds,
            "report": self.report_seconds,
            "epoch": self.epoch_seconds,
            "reset": self.reset_seconds,
        }
        makers = {
            "sample": self._sampled,
            "report": self._reported,
            "epoch": self._epoch,
            "reset": self._reset,
        }
        for step in range(self.exchange_steps - 1, self.num_steps, self.exchange_steps):
            at_seconds = (step + 1) * step_seconds
            for name, make in makers.items():
                while due[name] <= at_seconds:
                    for event in make(step, due[name]):
                        yield due[name], event
                    due[name] += every[name]
            yield at_seconds, self._exchange(step, at_seconds)
        for worker in workers:
            yield (
                self.seconds,
                WorkerExited(worker=worker, host=f"{worker.node}-0", exit_code=0, words=""),
            )
        yield self.seconds, RunEnded(exit_code=0, reason="the training is finished")

    def _joined(self, applied_steps: int) -> WorkersJoined:
        return WorkersJoined(
            rendezvous_id=1,
            workers=self.workers,
            applied_steps=applied_steps,
            global_batch_size=16 * self.num_nodes,
            capacities=(-1,) * self.num_nodes,
            prefetch_steps=0,
        )

    def _exchange(self, step: int, at_seconds: float) -> StepsTimed:
        drift = 1.0 + 0.1 * math.sin(at_seconds / 3600.0)
        columns: dict[str, Any] = {
            n: 0.00123 * drift for n in StepTiming.__struct_fields__ if n.endswith("_seconds")
        }
        columns |= {"step_seconds": 0.05 * drift, "contention_seconds": math.nan}
        row = StepTiming(
            num_steps=self.exchange_steps, local_batch_size=16, memory_bytes=1e9, **columns
        )
        return StepsTimed(
            rendezvous_id=1,
            step=step,
            epoch=int(at_seconds / self.epoch_seconds),
            loss=1.0 / (1.0 + at_seconds / 3600.0),
            timings=(row,) * self.num_nodes,
            exchange_seconds=0.001,
        )

    def _sampled(self, step: int, at_seconds: float) -> Iterator[Event]:
        del step
        for worker in self.workers:
            device = DeviceSample(
                uuid=f"GPU-{worker.node}",
                name="a GPU with a name",
                use_ratio=0.93,
                memory_used_bytes=7.1e10,
                memory_total_bytes=8.5e10,
                temperature_celsius=71.0,
                power_watts=412.7,
                energy_joules=412.7 * at_seconds,
                sm_clock_hertz=1.98e9,
                memory_clock_hertz=2.6e9,
                pcie_received_bytes_per_second=1.1e9,
                pcie_sent_bytes_per_second=1.2e9,
            )
            yield NodeSampled(
                node=worker.node,
                machine_id=f"machine of {worker.node}",
                at_unix_seconds=at_seconds,
                seconds=self.sample_seconds,
                cpu_use_ratio=0.4,
                load=7.3,
                memory_used_bytes=5.5e10,
                memory_total_bytes=1.3e11,
                network_received_bytes_per_second=3.3e8,
                network_sent_bytes_per_second=3.3e8,
                package_energy_joules=100.0 * at_seconds,
                devices=(device,),
            )

    def _reported(self, step: int, at_seconds: float) -> Iterator[Event]:
        """Every few seconds; the balancer decides, and now and then it is judged and planned."""
        operation = OperationTiming.first(
            "allreduce", "nccl", 2**25, num_bytes=30_000_000, seconds=0.004
        )
        operations = tuple(
            OperationTiming.first("allreduce", "gloo", 2**size, num_bytes=2**size, seconds=0.001)
            for size in range(10, 14)
        )
        yield CollectivesTimed(
            rendezvous_id=1,
            step=step,
            num_workers=self.num_nodes,
            operations=(operation, *operations),
        )
        for worker in self.workers:
            yield DeviceUsed(worker=worker, step=step, utilization_ratio=0.9)
            yield PhasesTimed(worker=worker, step=step, seconds={"crop": 0.1}, counts={"crop": 40})
        yield Decided(
            rendezvous_id=1, step=step, action="keep", reason="a gain of 0.3% is too small"
        )
        if at_seconds % 300.0 < self.report_seconds:
            yield Judged(step=step, findings=())
            for worker in self.workers:
                yield ClockMeasured(worker=worker, offset_seconds=0.001, uncertainty_seconds=0.002)
            yield BatchPlan(
                rendezvous_id=1,
                plan_id=step,
                from_step=step + 3,
                exchange_steps=self.exchange_steps,
                workers=self.workers,
                local_batch_sizes=(16,) * self.num_nodes,
                reason="2% faster, confirmed",
            )

    def _epoch(self, step: int, at_seconds: float) -> Iterator[Event]:
        epoch = round(at_seconds / self.epoch_seconds)
        if epoch:
            metrics = {"accuracy": 1.0 - 1.0 / (2 + epoch), "loss": 1.0 / epoch}
            yield Evaluated(epoch=epoch - 1, step=step, metrics=metrics)
        yield EpochBegan(epoch=epoch, step=step)

    def _reset(self, step: int, at_seconds: float) -> Iterator[Event]:
        del at_seconds
        lost = self.workers[-1]
        host = f"{lost.node}-0"
        yield WorkerExited(worker=lost, host=host, exit_code=137, words="killed")
        yield WorkerStarted(worker=lost, host=host, num_restarts=1)
        yield self._joined(step + 1 - self.exchange_steps)
        for worker in self.workers:
            yield Recovered(
                worker=worker, rendezvous_id=1, cause="fault", seconds=0.4, broadcast=False
            )


def record(folder: Path, run: LongRun) -> int:
    """Write all that the driver would write of it, as fast as it goes.

    Returns:
        How many events there were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recorder, timings = Recorder(folder), TimingLog(folder)
    nodes = tuple(NodeConfig(name=worker.node, devices=()) for worker in run.workers)
    config = ClusterConfig(job=JobConfig(remember=False), nodes=nodes)
    decided = Balancing(config, folder, EventBus(), lambda _: None)
    tables = StepTables()
    number = 0
    for number, (at_seconds, event) in enumerate(run.events(), 1):
        now = BEGIN_SECONDS + at_seconds
        recorder.observe(now, event)
        timings.observe(now, event)
        if isinstance(event, Decided):
            decided.keep(event)
        if (table := tables.observe(event)) is not None:
            recorder.observe(now, table)
        if number % EVENTS_PER_FLUSH == 0 and not recorder.flush(60.0):
            raise TimeoutError("the disk does not take it")
    if recorder.flush(60.0):
        recorder.close()
    timings.close()
    decided.close()
    if recorder.num_lost:
        raise OSError(f"{recorder.num_lost} events are missing")
    return number


def size_bytes(folder: Path) -> int:
    """Of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
