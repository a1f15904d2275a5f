"""What is measured around the steps of a worker, and told to the driver every few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch

from hetero_hvd.data.read_meter import take_readings
from hetero_hvd.messages import (
    CollectivesTimed,
    DeviceUsed,
    PhasesTimed,
    SourceRead,
    SourcesRead,
)
from hetero_hvd.messages.launch import TraceSettings
from hetero_hvd.probes.garbage import GarbageMeter
from hetero_hvd.probes.kernel.contention import ContentionMeter
from hetero_hvd.probes.kernel.memory_stalls import MemoryStallMeter
from hetero_hvd.probes.kernel.throttling import CpuQuota, ThrottleMeter
from hetero_hvd.probes.phase_clock import PhaseClock, ProcessorUse
from hetero_hvd.worker.accelerator import is_nvidia, uuid_of
from hetero_hvd.worker.session.worker_context import WorkerContext, device
from hetero_hvd.worker.timing.gpu_utilization import DeviceUse
from hetero_hvd.worker.timing.named_phases import named_times
from hetero_hvd.worker.timing.trace import TraceControl

REPORT_SECONDS = 2.0
"""Between two messages of one kind, whatever the pace of the exchange of timings."""

LOOK_SECONDS = 0.05
"""Between two readings of the kernel's files, which cost more than all the rest together; what
short steps lost to a quota or to memory is put down to the last of them."""

REDUCTION_RATIO = 0.25
"""Of the processor time of its own phases, as the most that a reduction takes of a worker that
computes with several threads: those may wait for the next phase without sleeping."""


class StepProfile:
    """The measurements of one worker that no phase of a step contains, and its traces.

    Args:
        clock: Of the phases.
        traces: Where traces go; None where nobody could be told of one.
    """

    def __init__(self, clock: PhaseClock, traces: TraceSettings | None) -> None:
        self._clock = clock
        self._tracing = None if traces is None else TraceControl(traces, clock)
        self._meters: dict[str, ThrottleMeter | MemoryStallMeter | ContentionMeter] = {
            "throttled": ThrottleMeter(),
            "memory_stall": MemoryStallMeter(),
            "contention": ContentionMeter(),
        }
        self._garbage = GarbageMeter()
        self._nothing = {name: 0.0 * meter.take() for name, meter in self._meters.items()}
        self._lost = self._nothing
        self._quota = CpuQuota()
        self._use: DeviceUse | None = None
        self._reducing_before = 0.0
        self._next_look_at = self._next_report_at = 0.0
        self._data_wait_seconds = 0.0

    def look(self) -> None:
        """Read the kernel's files, if it is time; best where this worker waits for the others.

        What is found adds to what this step has lost before: its wait may be long enough for two.
        """
        now = time.monotonic()
        if now >= self._next_look_at:
            self._next_look_at = now + LOOK_SECONDS
            self._lost = {
                name: self._lost[name] + meter.take() for name, meter in self._meters.items()
            }

    def step_applied(
        self, context: WorkerContext, step: int, seconds: Mapping[str, float]
    ) -> dict[str, float]:
        """A step has ended.

        Args:
            context: Of this worker.
            step: Index of the step.
            seconds: Time per phase in it.

        Returns:
            Seconds in this step: `throttled`, `memory_stall`, `contention`, `garbage`, `processor`,
            `quota`, and `reducing`, with a reduction under way. NaN is not known here.
        """
        reducing = context.collective.operations.reducing_seconds
        in_step, self._reducing_before = reducing - self._reducing_before, reducing
        self.look()
        lost, self._lost = self._lost, self._nothing
        self._data_wait_seconds += seconds.get("data_wait", 0.0)
        if time.monotonic() >= self._next_report_at:
            self._tell(context, step)
        if self._tracing is not None:
            self._tracing.step_applied(context, step)
        used = self._clock.take_processor_seconds()
        return {
            **lost,
            "garbage": self._garbage.take(),
            "reducing": in_step,
            "processor": used.own,
            "quota": self._quota_seconds(used),
        }

    def _quota_seconds(self, used: ProcessorUse) -> float:
        """How long the quota takes to give what this worker has used in a step."""
        cores = self._quota.cores()
        if math.isinf(cores):
            return 0.0
        most = math.inf if torch.get_num_threads() == 1 else used.own * REDUCTION_RATIO
        return (used.own + min(used.reducing, most)) / cores

    def finish(self, context: WorkerContext, step: int) -> None:
        """Nothing more will come: send what is left.

        Args:
            context: Of this worker.
            step: Index of the last step.
        """
        self._tell(context, step)
        self._garbage.close()
        if self._use is not None:
            self._use.close()
        if self._tracing is not None:
            self._tracing.close(context, step)

    def _tell(self, context: WorkerContext, step: int) -> None:
        """Tell what was gathered since the last time."""
        self._next_report_at = time.monotonic() + REPORT_SECONDS
        operations = context.collective.operations.take()
        seconds, counts = named_times.take()
        if operations and context.collective.rank == 0:
            context.tell(
                CollectivesTimed(
                    rendezvous_id=context.rendezvous_id,
                    step=step,
                    num_workers=context.collective.size,
                    operations=operations,
                )
            )
        worker = context.settings.worker
        if seconds:
            context.tell(PhasesTimed(worker=worker, step=step, seconds=seconds, counts=counts))
        if sources := self._sources_read():
            context.tell(SourcesRead(worker=worker, step=step, sources=sources))
        if self._use is None:
            own = device()
            self._use = DeviceUse(uuid_of(own) if is_nvidia(own) else "")
        if (ratio := self._use.news()) is not None:
            context.tell(DeviceUsed(worker=worker, step=step, utilization_ratio=ratio))

    def _sources_read(self) -> dict[str, SourceRead]:
        """What was done since the last time with each source that anything was done with.

        The waits are divided among them as the work of reading and decoding is.
        """
        waited, self._data_wait_seconds = self._data_wait_seconds, 0.0
        readings = {name: found for name, found in take_readings().items() if any(found)}
        work = sum(found.read_seconds + found.decode_seconds for found in readings.values())
        return {
            name: SourceRead(
                wait_seconds=waited * (found.read_seconds + found.decode_seconds) / work,
                **found._asdict(),
            )
            for name, found in readings.items()
            if work > 0
        }
