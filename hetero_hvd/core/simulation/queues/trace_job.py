"""A job of a trace: what was submitted, when, and how many devices a rigid queue would give it."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.set_rate import balanced_rate, uniform_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceJob:
    """One line of a trace.

    Attributes:
        request: With its work; every policy has the same to do.
        submit_seconds: Since the trace began.
        num_devices: What a queue gives it whose jobs cannot shrink.
        is_work_told: Whether a policy that looks at it is told the work beforehand.
    """

    request: JobRequest
    submit_seconds: float
    num_devices: int
    is_work_told: bool = True

    def may_use(self, device: QueueDevice) -> bool:
        """Whether a device fulfils its needs, and is measured for it or for all jobs."""
        request = self.request
        return self.rate_on(device) > 0 and all(
            need.is_met_by(memory_bytes=device.memory_bytes, kind=device.kind, node=device.node)
            for need in request.needs
        )

    def rate_on(self, device: QueueDevice) -> float:
        """Units of work per second of the device alone."""
        return self.request.rates.get(device.kind, 0.0)

    def rate_of(self, devices: list[QueueDevice], *, is_balanced: bool) -> float:
        """Units of work per second of a set; 0 of none.

        Args:
            devices: The set.
            is_balanced: Whether shares follow the speeds; else they are equal.
        """
        costs = self.request.communication_seconds
        facts = [(self.rate_on(each), costs.get(each.kind, 0.0)) for each in devices]
        return (balanced_rate if is_balanced else uniform_rate)(facts)
