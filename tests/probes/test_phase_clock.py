"""The clock of a step's phases: on the host, and on a device that is behind it."""

import contextlib
import time
from functools import partial

import pytest

from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker import accelerator


class Device:
    """Runs its queue when the test says so; an event is passed once all before it has run."""

    def __init__(self):
        self.queued_ms = 0.0
        self.done_ms = 0.0

    def __call__(self):
        """A new event."""
        return DeviceEvent(self)


class DeviceEvent:
    """Of the device's queue."""

    def __init__(self, device):
        self.device = device
        self.at_ms = -1.0

    def record(self):
        """Behind all that is queued now."""
        self.at_ms = self.device.queued_ms

    def query(self):
        """Whether the device is as far."""
        return self.device.done_ms >= self.at_ms

    def elapsed_time(self, end):
        """As in torch: an error before both are passed."""
        assert self.query()
        assert end.query()
        return end.at_ms - self.at_ms


def test_a_device_that_is_behind_is_never_waited_for():
    """A phase is counted once, when the device has passed it; host phases count at once."""
    device = Device()
    clock = PhaseClock(device)
    for milliseconds in (30.0, 50.0):
        with clock.phase("data_wait"):
            pass
        with clock.phase("forward"):
            device.queued_ms += milliseconds
    assert not clock.is_immediate
    device.done_ms = 40.0
    first = clock.take()
    assert first["forward"] == pytest.approx(0.030)
    assert 0.0 < first["data_wait"] < 1.0
    assert clock.take() == {}
    device.done_ms = 80.0
    assert clock.take() == {"forward": pytest.approx(0.050)}


def test_a_phase_that_raises_is_counted_and_left():
    """On the host and on the device."""
    for clock in (PhaseClock(), PhaseClock(Device())):
        with pytest.raises(ArithmeticError), clock.phase("forward"):
            raise ArithmeticError(clock.current[0])
        assert clock.current == ("", 0.0)
        assert clock.take().keys() == {"forward"}


def test_a_marker_is_around_every_phase():
    """In order, and only while it is set."""
    seen = []

    @contextlib.contextmanager
    def marker(name):
        seen.append(name)
        yield
        seen.append(f"end of {name}")

    clock = PhaseClock()
    clock.marker = marker
    with clock.phase("forward"), clock.phase("backward"):
        pass
    clock.marker = None
    with clock.phase("optimizer"):
        pass
    assert seen == ["forward", "backward", "end of backward", "end of forward"]
    assert clock.take().keys() == {"forward", "backward", "optimizer"}


@pytest.mark.gpu
def test_events_measure_the_devices_own_time():
    """Real events: the launch returns long before the work is done, and the work is what counts."""
    torch = pytest.importorskip("torch")
    device = accelerator.own_device(0)
    if not accelerator.is_accelerator(device):
        pytest.skip("no accelerator")
    clock = PhaseClock(partial(accelerator.DeviceEvent, device, is_timed=True))
    big = torch.ones(4096, 4096, device=device)
    with clock.phase("forward"):
        for _ in range(50):
            big = big @ big / 4096
    accelerator.synchronize(device)
    assert clock.take()["forward"] > 0.0


def test_processor_time_outside_waits_for_reductions_is_counted():
    """A wait that keeps a core busy is told beside the worker's own work; sleeping takes none."""
    clock = PhaseClock()

    def spin(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    with clock.phase("forward"):
        spin(0.02)
        time.sleep(0.05)
    with clock.phase("comm_wait"):
        spin(0.05)
    own, reducing = clock.take_processor_seconds()
    assert 0.02 <= own < 0.04
    assert 0.05 <= reducing < 0.07
    assert max(clock.take_processor_seconds()) < 0.005


def test_an_evaluation_is_no_work_of_a_step():
    """It is timed by the host, and a step's processor time does not have it in."""
    clock = PhaseClock()
    with clock.phase("evaluation"):
        time.sleep(0.02)
        deadline = time.process_time() + 0.02
        while time.process_time() < deadline:
            pass
    assert max(clock.take_processor_seconds()) < 0.02
    assert clock.take()["evaluation"] >= 0.04


def test_what_is_used_between_phases_is_counted_once():
    """What was taken as work already is not the wait's that comes right after it."""
    clock = PhaseClock()
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert clock.take_processor_seconds().own >= 0.05
    with clock.phase("comm_wait"):
        pass
    assert clock.take_processor_seconds().own >= 0
