"""Instruction sets on real Horovod processes: all workers need the same."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from hetero_hvd.core.numerics.cpu_capability import variables

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64"),
]


def test_all_workers_keep_to_one(tmp_path, start_workers):
    """Else they are refused by the fact that differs, before they train."""
    for rank in start_workers(tmp_path, "capabilities", 2, sets=["avx2", "default"]):
        assert "fingerprint" not in rank
        assert "cpu_capability avx2" in rank["error"]
        assert "cpu_capability default" in rank["error"]
        assert "all workers need the same" in rank["error"]


def flags():
    """What this processor can do."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


@pytest.fixture
def fingerprint(tmp_path, start_workers, monkeypatch):
    """Trains with an instruction set; the fingerprint of all its workers."""
    for name in variables("avx2"):
        monkeypatch.delenv(name, raising=False)

    def train(name, num_workers):
        folder = tmp_path / f"{name}-{num_workers}"
        folder.mkdir()
        ranks = start_workers(folder, "capabilities", num_workers, sets=[name] * num_workers)
        (found,) = {rank["fingerprint"] for rank in ranks}
        return found

    return train


@pytest.mark.matrix
@pytest.mark.skipif("avx512f" not in flags(), reason="needs a processor with AVX-512")
def test_the_cap_is_what_makes_unlike_processors_equal(fingerprint):
    """As far as one machine shows it: natively other bits, under the cap always the same."""
    capped = {fingerprint("avx2", number) for number in (1, 2, 3)}
    native = {fingerprint("native", number) for number in (1, 2)}
    assert len(capped) == len(native) == 1
    assert capped != native
