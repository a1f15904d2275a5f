"""Who this machine is."""

import pytest

from hetero_hvd.discovery import machine
from hetero_hvd.discovery.machine import gpu_uuids, visible_in
from hetero_hvd.probes.gpu.gpu_records import GpuReport, MigDevice
from hetero_hvd.security.connection_limiter import plain_address


@pytest.mark.parametrize(
    ("told", "plain"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1", "fe80::1")],
)
def test_addresses_are_shown_as_people_write_them(told, plain):
    """Also on a port that listens for both kinds of addresses."""
    assert plain_address(told) == plain


GPUS = tuple(
    GpuReport(
        index=index,
        name="A100",
        uuid=f"GPU-{index}0000000",
        mig_devices=(MigDevice(uuid="MIG-1", memory_bytes=1),) if index == 2 else (),
    )
    for index in range(4)
)
VISIBLE = {
    "not set": (None, [0, 1, 2, 3], [f"GPU-{index}0000000" for index in range(4)]),
    "none": ((), [], []),
    "by index": (("2", "0"), [2, 0], ["GPU-00000000", "GPU-20000000"]),
    "by UUID": (("GPU-3",), [3], ["GPU-30000000"]),
    "a part of one": (("MIG-1",), [2], ["MIG-1"]),
    "none of this machine": (("7", "GPU-9", "-1", ""), [], []),
    "one that is not there among them": (("3", "4", "0", "MIG-1"), [3], ["GPU-30000000"]),
}


@pytest.mark.parametrize("case", VISIBLE)
def test_only_the_gpus_that_may_be_used_count(case, monkeypatch, tmp_path):
    """Two agents on one machine, each with GPUs of its own, have none in common."""
    monkeypatch.setattr(machine, "gpus", lambda: GPUS)
    monkeypatch.setattr(machine, "_GPUS", tmp_path)
    visible, indices, uuids = VISIBLE[case]
    assert [gpu.index for gpu in visible_in(GPUS, visible)] == indices
    assert list(gpu_uuids(visible)) == uuids
