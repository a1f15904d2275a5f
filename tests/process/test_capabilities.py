"""Instruction sets on real Horovod processes: all workers need the same."""

from __future__ import annotations

import platform

import pytest

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
