"""Our policy in a replay: the queue's own state and plan, fed with the replay's events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.queue_events import JobFinished, JobProgressed, JobSubmitted
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.simulation.queues.queue_replay import ReplayedJob


class OurPolicy:
    """What `hetero-hvd queue` decides.

    Args:
        devices: Of the cluster.
        settings: Of the queue.
        pools: Of the cluster.
        is_work_known: Whether jobs tell how much they have to do, as ours can.
    """

    is_balanced = True
    round_seconds = 1800.0

    def __init__(
        self,
        devices: Sequence[QueueDevice],
        settings: QueueSettings,
        pools: Sequence[DevicePool] = (),
        *,
        is_work_known: bool = True,
    ) -> None:
        self.pause_seconds = settings.pause_seconds
        self._state = QueueState(devices, pools, settings)
        self._is_work_known = is_work_known

    def submitted(self, job: ReplayedJob, now_seconds: float) -> None:
        """It is put into the queue."""
        request = job.trace.request
        if not (self._is_work_known and job.trace.is_work_told):
            request = replace(request, work=math.nan)
        self._state.handle(JobSubmitted(request), now_seconds)

    def finished(self, job: ReplayedJob, now_seconds: float) -> None:
        """It leaves the queue."""
        self._state.handle(JobFinished(job.trace.request.job), now_seconds)

    def place(
        self, jobs: Mapping[str, ReplayedJob], now_seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """What the plan says."""
        for name, job in jobs.items():
            if job.devices:
                self._state.handle(JobProgressed(name, job.done_work), now_seconds)
        decide(self._state, now_seconds)
        return {name: job.devices for name, job in self._state.jobs.items() if job.devices}
