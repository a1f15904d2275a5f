"""What a device can do, and what is remembered of it on its machine."""

import json
import os
import subprocess
import sys

import msgspec
import pytest
import torch

from hetero_hvd.messages.benchmark import DeviceMeasured, ModelMeasured
from hetero_hvd.probes import benchmark_cache
from hetero_hvd.worker.benchmark.device_speed import measure_device
from hetero_hvd.worker.benchmark.model_benchmark import MARK

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


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import hetero_hvd

model = torch.nn.Linear(8, 1)
loader = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=8)
trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
for epoch in trainer.epochs(1000):
    for (x,) in trainer.batches():
        trainer.step(lambda x: model(x).mean(), x)
"""


def test_a_model_is_measured_once(tmp_path):
    """By whatever the script does in a step; the second time it is known, with `fresh` it is not.

    The emulated node takes 0.1 s and 0.2 s for one and two samples, more than any noise.
    """
    node = {"emulate": {"seconds_per_sample": 0.1}, "max_local_batch_size": 2}
    environment = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path),
    }
    found = []
    for is_fresh in (False, False, True):
        told = {"node": node, "benchmark": {"seconds": 3.0, "is_fresh": is_fresh}}
        own = environment | {"HETERO_HVD_LAUNCH": json.dumps(told)}
        vector = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(vector, env=own, check=True, capture_output=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith(MARK.encode())]
        found.append(msgspec.json.decode(lines[-1].removeprefix(MARK.encode()), type=ModelMeasured))
    assert [one.is_cached for one in found] == [False, True, False]
    first, second, _ = found
    assert msgspec.structs.replace(second, is_cached=False) == first
    assert [size.local_batch_size for size in first.sizes] == [1, 2]
    assert first.sizes[1].busy_seconds == pytest.approx(0.2, rel=0.2)
    assert first.seconds_per_sample == pytest.approx(0.1, rel=0.2)
    assert (first.global_batch_size, first.model.split()[0]) == (8, "Linear")
    assert first.read_samples_per_second > 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache's folder, of a user of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hetero_hvd" / "benchmarks"


def test_a_result_comes_back_for_the_same_key(folder):
    """Another torch, or another device, is another measurement."""
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
    benchmark_cache.save(KEY, RESULT, is_valid=True)
    assert benchmark_cache.load(KEY, DeviceMeasured) == RESULT
    assert benchmark_cache.load({**KEY, "torch": "3"}, DeviceMeasured) is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"type": "ModelMeasured"}', b"\xff"])
def test_a_file_that_cannot_be_read_is_measured_again(folder, content):
    """Nothing in the cache can stop a benchmark."""
    benchmark_cache.save(KEY, RESULT, is_valid=True)
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
    benchmark_cache.save(KEY, RESULT, is_valid=True)
    assert benchmark_cache.load(KEY, DeviceMeasured) == RESULT


def test_what_is_not_valid_is_measured_again_and_never_spoils_what_is(folder):
    """It is kept all the same, for the parts of it that are."""
    noisy = msgspec.structs.replace(RESULT, device="noisy")
    benchmark_cache.save(KEY, noisy, is_valid=False)
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
    assert list(benchmark_cache.entries(DeviceMeasured)) == [(KEY, noisy)]
    benchmark_cache.save(KEY, RESULT, is_valid=True)
    benchmark_cache.save(KEY, noisy, is_valid=False)
    assert benchmark_cache.load(KEY, DeviceMeasured) == RESULT
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    """The next benchmark measures again."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    benchmark_cache.save(KEY, RESULT, is_valid=True)
    assert msgspec.json.encode(RESULT)
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
