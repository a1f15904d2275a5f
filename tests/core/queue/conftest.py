"""A small cluster of unlike devices, and jobs for it."""

from __future__ import annotations

import pytest

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest

GIB = 1 << 30
SPEEDS = {"a100": 1.0, "v100": 0.5, "t4": 0.2}
MEMORY = {"a100": 40 * GIB, "v100": 16 * GIB, "t4": 8 * GIB}


@pytest.fixture(name="device")
def device_maker():
    """Make a device from its kind and number."""

    def make(kind, number=0, *, pool="default", **more):
        return QueueDevice(
            device=f"{kind}-{number}",
            kind=kind,
            node=more.pop("node", f"{kind}-node"),
            pool=pool,
            memory_bytes=MEMORY[kind],
            relative_speed=SPEEDS[kind],
            **more,
        )

    return make


@pytest.fixture(name="request_of")
def request_maker():
    """Make a job of known work that runs at its kind's relative speed."""

    def make(job, user="ann", **more):
        more.setdefault("max_devices", max(4, more.get("min_devices", 1)))
        if not more.get("is_shrinkable", True):
            more.setdefault("time_limit_seconds", 7200.0)
        more.setdefault("rates", SPEEDS)
        more.setdefault("work", 3600.0)
        return JobRequest(job=job, user=user, **more)

    return make
