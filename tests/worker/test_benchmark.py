"""What a device can do, and what is remembered of it on its machine."""

import msgspec
import pytest
import torch

from hetero_hvd.messages.benchmark import DeviceMeasured
from hetero_hvd.worker import benchmark_cache
from hetero_hvd.worker.device_speed import measure_device

RESULT = DeviceMeasured(device="d", versions={}, speeds=())
KEY = {"device": "d", "torch": "2"}


def test_each_format_is_measured_on_the_cpu():
    """Products and copies with a speed and enough repeats for a verdict."""
    found = list(measure_device(torch.device("cpu"), budget_seconds=0.3))
    kinds = {(speed.what, speed.dtype) for speed in found}
    assert {("matrix product", "float32"), ("copy", "float32"), ("copy", "bfloat16")} <= kinds
    for speed in found:
        assert speed.per_second > 1e6
        assert speed.num_repeats >= 3
        assert speed.spread_ratio >= 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache's folder, of a user of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hetero_hvd" / "benchmarks"


def test_a_result_comes_back_for_the_same_key(folder):
    """Another torch, or another device, is another measurement."""
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
    benchmark_cache.save(KEY, RESULT)
    assert benchmark_cache.load(KEY, DeviceMeasured) == RESULT
    assert benchmark_cache.load({**KEY, "torch": "3"}, DeviceMeasured) is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"type": "ModelMeasured"}', b"\xff"])
def test_a_file_that_cannot_be_read_is_measured_again(folder, content):
    """Nothing in the cache can stop a benchmark."""
    benchmark_cache.save(KEY, RESULT)
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
    benchmark_cache.save(KEY, RESULT)
    assert benchmark_cache.load(KEY, DeviceMeasured) == RESULT


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    """The next benchmark measures again."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    benchmark_cache.save(KEY, RESULT)
    assert msgspec.json.encode(RESULT)
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
