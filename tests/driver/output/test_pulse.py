"""What the supervisor sees of a silent process, and how that travels through its output."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.pulse import Look, Pulse
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import WorkerId
from hetero_hvd.probes.kernel.processes import active_seconds, session_of, state_of
from tests.leftovers import wait_until

LOOKS = {
    "computes": ([("R", 0.0), ("R", 0.5), ("R", 1.0)], True),
    "waits for a core": ([("R", 0.0), ("R", 0.3), ("R", 0.6)], True),
    "waits": ([("S", 0.0), ("S", 0.03), ("S", 0.07)], False),
    "is stopped": ([("R", 0.0), ("R", 0.5), ("T", 0.9)], False),
    "has answered once": ([("R", 0.0)], False),
}


@pytest.mark.parametrize("name", LOOKS)
def test_busy_is_who_uses_or_wants_a_core(name):
    """Answers that are old say nothing about now."""
    looks, expected = LOOKS[name]
    pulse = Pulse()
    for number, (state, seconds) in enumerate(looks):
        at = number / 2
        look = Look(at_seconds=at, state=state, own_seconds=seconds, all_seconds=seconds)
        pulse.told(look)
    assert pulse.is_busy(1.0) is expected
    assert not pulse.is_busy(60.0)


def test_the_kernel_tells_stopped_from_busy():
    """Of a real process: it runs, it is stopped, it is gone."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        wait_until(lambda: active_seconds(child.pid) > 0.1, 30, "processor time")
        assert session_of(child.pid) == [child.pid]
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(child.pid) == "T", 10, "the stop")
        used = active_seconds(child.pid)
        assert active_seconds(child.pid) == used
    finally:
        child.kill()
        child.wait()
    assert (state_of(child.pid), active_seconds(child.pid)) == ("?", 0.0)


def test_a_worker_that_prepares_its_data_is_starting():
    """It or what it has started does something; asked each half second, until it is ready."""
    asked = []
    slot = Slot(
        worker=WorkerId("alpha", 0),
        node=NodeConfig(name="alpha"),
        output=SimpleNamespace(pulse=Pulse()),
        process=SimpleNamespace(look=lambda: asked.append(True)),
    )
    for number, all_seconds in enumerate((0.1, 0.4, 0.7)):
        at = number / 2
        assert slot.is_starting(at) is (number > 1)
        look = Look(at_seconds=at, state="S", own_seconds=0.1, all_seconds=all_seconds)
        slot.output.pulse.told(look)
    assert slot.is_starting(1.0)
    assert not slot.is_starting(9.0)  # nothing was heard of it since
    assert len(asked) == 4
    slot.ready = object()
    assert not slot.is_starting(1.0)


def test_a_process_may_have_any_name(tmp_path):
    """The kernel cuts names after 15 bytes, also in the middle of a character."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_bytes(b"7 (train-\xc3) S 1 7 5 0 -1")
    assert session_of(5, tmp_path) == [7]
