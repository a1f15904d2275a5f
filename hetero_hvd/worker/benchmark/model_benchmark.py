"""The benchmark of the user's own model: its script runs alone, with batches of several sizes.

Nothing is built again for it: the steps are those of `Trainer`, whatever the script does in them.
Only the shares differ: the rest of each global batch is left to a worker that does not exist.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import msgspec
import torch

from hetero_hvd.core.benchmark import SizeSchedule, fit, is_valid, sizes_to_try
from hetero_hvd.messages.benchmark import BenchmarkLine, BenchmarkProgress, ModelMeasured
from hetero_hvd.messages.launch import BenchmarkSettings, WorkerLaunch
from hetero_hvd.probes import benchmark_cache
from hetero_hvd.probes.gpu.nvml import survey
from hetero_hvd.probes.machine.hardware import allowed_cores
from hetero_hvd.worker import accelerator
from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.recovery.elastic_state import ElasticState
from hetero_hvd.worker.recovery.reports import Report, Workload
from hetero_hvd.worker.session.self_description import describe_device, software
from hetero_hvd.worker.session.worker_context import device
from hetero_hvd.worker.step.passes import Passes
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.training_mode import TrainingMode

MARK = "hetero-hvd-benchmark "
"""In front of a line of ours, among what the script prints."""

MODEL_RATIO = 0.5
"""Part of the time of a benchmark that the model may take."""

READ_RATIO, MAX_READS = 0.1, 5
"""Part of the time that reading may take by itself, and how often."""


def open_state(
    parts: dict[str, Stateful],
    loader: ShareLoader,
    passes: Passes,
    pipeline: Pipeline,
    *,
    mode: TrainingMode,
    work: Workload,
    launch: WorkerLaunch,
) -> ElasticState:
    """The state of a training, or of a benchmark where this process was started for one."""
    if launch.benchmark is None:
        return ElasticState(parts, loader, passes, pipeline, mode=mode, work=work, launch=launch)
    return BenchmarkState(
        parts,
        loader,
        passes,
        pipeline,
        mode=mode,
        work=work,
        launch=launch,
        settings=launch.benchmark,
    )


def tell(line: BenchmarkLine) -> None:
    """Print a line for the command that has started this process."""
    sys.stdout.write(f"{MARK}{msgspec.json.encode(line).decode()}\n")
    sys.stdout.flush()


def cache_key(own: torch.device, **more: str) -> dict[str, str]:
    """What a measurement on a device depends on.

    Args:
        own: The device.
        more: What else it depends on.
    """
    driver = (survey().driver_version or "") if accelerator.is_nvidia(own) else ""
    return {
        "device": describe_device(own),
        "uuid": accelerator.uuid_of(own),
        "driver": driver,
        "cores": f"{allowed_cores():g}",
        **software(own),
        **more,
    }


class BenchmarkState(ElasticState):
    """Takes part in no job: hands out shares of all sizes, measures, tells, and ends the process.

    Args:
        parts: See `ElasticState`.
        loader: See `ElasticState`.
        passes: See `ElasticState`.
        pipeline: See `ElasticState`.
        mode: See `ElasticState`.
        work: See `ElasticState`.
        launch: See `ElasticState`.
        settings: What the benchmark may take.
    """

    def __init__(
        self,
        parts: dict[str, Stateful],
        loader: ShareLoader,
        passes: Passes,
        pipeline: Pipeline,
        *,
        mode: TrainingMode,
        work: Workload,
        launch: WorkerLaunch,
        settings: BenchmarkSettings,
    ) -> None:
        super().__init__(parts, loader, passes, pipeline, mode=mode, work=work, launch=launch)
        self._budget_seconds = MODEL_RATIO * settings.seconds
        self._is_fresh = settings.is_fresh
        self._schedule = SizeSchedule([loader.global_batch_size], self._budget_seconds)
        self._key: dict[str, str] = {}
        self._began_at = 0.0
        self._reads_per_second: float | None = None
        self._told: set[int] = set()

    def enter(self) -> None:
        """Prepare; if this was measured before, tell it and end."""
        super().enter()
        total = self._loader.global_batch_size
        self._key = cache_key(
            device(),
            model=self.work.model,
            global_batch_size=str(total),
            micro_batch_size=str(self._sizing.largest),
            numerics=self._numerics,
            emulate=repr(self.context.settings.node.emulate),
        )
        known = benchmark_cache.load(self._key, ModelMeasured)
        if known is not None and not self._is_fresh:
            tell(msgspec.structs.replace(known, is_cached=True))
            raise SystemExit(0)
        multiple = self._sizing.largest if self._numerics else 1  # grains are not divided
        sizes = sizes_to_try(total, capacity=self.context.settings.capacity, multiple=multiple)
        self._schedule = SizeSchedule(sizes, self._budget_seconds)
        self._reads_per_second = self._read()
        self._began_at = time.perf_counter()

    def shares_in_epoch(self, step_in_epoch: int) -> tuple[tuple[int, ...], int]:
        """The size that the schedule wants; nobody takes the rest."""
        step = self.position.applied_steps - self.position.step_in_epoch + step_in_epoch
        size = self._schedule.size_at(step, self._elapsed_seconds)
        return (size, self._loader.global_batch_size - size), 0

    def is_urgent(self, share: int, is_timed: bool) -> bool:  # noqa: ARG002
        """There is nobody to tell."""
        return False

    def step_taken(self, share: int, seconds: dict[str, float], is_urgent: bool) -> None:  # noqa: ARG002
        """Account for a step; ends the process after the last one."""
        waits = ("comm_wait", "data_wait")
        busy = sum(value for phase, value in seconds.items() if phase not in waits)
        step = self.position.applied_steps + self._pipeline.num_in_flight - 1
        self._schedule.observe(step, share, busy)
        for result in self._schedule.results():
            if result.local_batch_size not in self._told:
                self._told.add(result.local_batch_size)
                milliseconds = 1e3 * result.busy_seconds
                text = f"{result.local_batch_size} samples in {milliseconds:.3g} ms"
                tell(BenchmarkProgress(text=text))
        if self._schedule.is_over(self._elapsed_seconds):
            self._conclude()
            raise SystemExit(0)

    def finish(self) -> bool:
        """The script has no more epochs: tell what is known."""
        self._conclude()
        return True

    def _report(self, **state: bool) -> Report:
        report = super()._report(**state)
        return msgspec.structs.replace(
            report, capacity=-1
        )  # a batch that this worker cannot hold alone is none of its business

    @property
    def _elapsed_seconds(self) -> float:
        return time.perf_counter() - self._began_at

    def _conclude(self) -> None:
        sizes = self._schedule.results()
        if not sizes:
            tell(BenchmarkProgress(text="the script took too few steps to measure anything"))
            return
        points = [(result.local_batch_size, result.busy_seconds) for result in sizes]
        curve = fit(points, self._sizing.largest)
        result = ModelMeasured(
            device=describe_device(device(), self.context.settings.node.emulate),
            model=self.work.model,
            global_batch_size=self._loader.global_batch_size,
            micro_batch_size=self._sizing.largest,
            sizes=sizes,
            overhead_seconds=curve.overhead_seconds,
            seconds_per_sample=curve.seconds_per_sample,
            read_samples_per_second=self._reads_per_second,
        )
        is_sound = all(is_valid(size.spread_ratio) for size in sizes)
        benchmark_cache.save(self._key, result, is_valid=is_sound)
        tell(result)

    def _read(self) -> float | None:
        """Samples per second of the dataset, by one reader; None for a stream."""
        found: list[float] = []
        began_at = start = time.perf_counter()
        for num_samples in self._loader.batches_alone(MAX_READS):
            end = time.perf_counter()
            found.append(num_samples / (end - start))
            if end - began_at > READ_RATIO * self._budget_seconds:
                break
            start = end
        return median(found) if found else None
