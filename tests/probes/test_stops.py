"""What stops a thread although it could run: others on its processor, and garbage collection."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest

from hetero_hvd.probes.garbage import GarbageMeter
from hetero_hvd.probes.kernel import contention
from hetero_hvd.probes.kernel.contention import ContentionMeter

RIVAL = "import os\nprint(flush=True)\nwhile os.getppid() == {parent}: pass"


def test_a_thread_that_shares_its_processor_waits_for_it():
    """Beside another program on one processor, about half of the time of a busy loop is waiting."""
    processors = os.sched_getaffinity(0)
    one = {min(processors)}
    os.sched_setaffinity(0, one)
    command = [sys.executable, "-c", RIVAL.format(parent=os.getpid())]
    rival = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        rival.stdout.readline()
        meter, waited = ContentionMeter(), 0.0
        deadline = time.monotonic() + 30
        while waited < 0.1 and time.monotonic() < deadline:
            sum(range(100_000))
            waited += meter.take()
        assert waited >= 0.1
    finally:
        rival.kill()
        rival.wait()
        rival.stdout.close()
        os.sched_setaffinity(0, processors)


@pytest.mark.parametrize("told", ["0 0 0\n", "", None])
def test_a_kernel_that_does_not_count_is_unmeasured(tmp_path, monkeypatch, told):
    """NaN, never 0."""
    path = tmp_path / "schedstat"
    if told is not None:
        path.write_text(told)
    monkeypatch.setattr(contention, "OF_THREAD", path)
    assert not ContentionMeter().take() >= 0


def test_garbage_collection_is_timed_until_the_meter_is_closed():
    """All of it, once, whoever has asked for it."""
    meter = GarbageMeter()
    try:
        began = time.perf_counter()
        gc.collect()
        took = time.perf_counter() - began
        found = meter.take()
        assert 0 < found <= took
        assert meter.take() == 0
    finally:
        meter.close()
    gc.collect()
    assert meter.take() == 0
