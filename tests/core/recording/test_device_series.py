"""Series have their samples by time, whatever order these come in."""

from __future__ import annotations

import numpy as np

from hetero_hvd.core.recording.device_series import SeriesCollector
from hetero_hvd.messages import DeviceSample, DeviceUser, NodeSampled


def test_samples_become_series_by_time():
    """Of nodes and GPUs; who uses a GPU is told by its newest sample."""
    collector = SeriesCollector({"use": "cpu_use_ratio"}, {"watts": "power_watts"})
    for at in (3.0, 1.0, 2.0):
        user = DeviceUser(pid=int(at), user="u", command="c")
        gpu = DeviceSample(index=1, name="H", power_watts=100 * at, used_by=(user,))
        devices = (gpu,) if at > 1 else ()
        collector.add("b", at, NodeSampled(cpu_use_ratio=at / 10, devices=devices))
    node, gpu = collector.series()
    assert (str(node), str(gpu), gpu.name) == ("b", "b GPU 1", "H")
    assert node.times.tolist() == [1.0, 2.0, 3.0]
    assert np.allclose(node.columns["use"], [0.1, 0.2, 0.3])
    assert gpu.columns["watts"].tolist() == [200.0, 300.0]
    assert gpu.users == ("pid 3 u c",)


def test_what_is_not_told_is_no_number():
    """It is no zero."""
    collector = SeriesCollector({"use": "cpu_use_ratio"}, {})
    collector.add("b", 1.0, NodeSampled())
    (node,) = collector.series()
    assert np.isnan(node.columns["use"]).all()
