"""All that can be seen from inside a pod, one finding after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hetero_hvd.pod.files import folder_finding, key_findings, shared_memory_finding
from hetero_hvd.pod.findings import PodFinding, PodPlaces
from hetero_hvd.pod.network import (
    address_findings,
    driver_findings,
    probe_finding,
    sidecar_findings,
)
from hetero_hvd.pod.resources import core_finding, gpu_finding, memory_findings, num_devices
from hetero_hvd.probes.machine.hardware import gpus


def examine(places: PodPlaces, torch_devices: Callable[[], Sequence[str]]) -> Iterator[PodFinding]:
    """Look at the pod in which this process is; changes nothing.

    Args:
        places: Where things are in it.
        torch_devices: Names of the devices that torch can use; asked only where there are GPUs.
    """
    yield from key_findings(places)
    yield shared_memory_finding(places.writable[0])
    yield from map(folder_finding, places.writable)
    yield from address_findings(places)
    yield from sidecar_findings()
    yield from driver_findings(places)
    yield probe_finding(places)
    yield core_finding(max(1, num_devices(gpus())))
    yield from memory_findings()
    yield gpu_finding(torch_devices)
