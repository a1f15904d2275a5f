"""What a worker looks at before the others count on it."""

from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.errors import UserError, WorkerFault
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import EmulateSettings, NodeSettings, WorkerIdentity, WorkerLaunch
from hetero_hvd.worker.session import worker_context
from hetero_hvd.worker.session.launch_settings import LaunchSettings
from hetero_hvd.worker.session.self_description import describe_device

CPU = torch.device("cpu")


class Product(torch.Tensor):
    """Ones whose product is what a device makes of it."""

    def __matmul__(self, other):
        """As on a device, with its fault."""
        right = self.as_subclass(torch.Tensor) @ other.as_subclass(torch.Tensor)
        return self.fault(right)


def with_element(value):
    """One element of a product is another one."""

    def fault(right):
        right[77, 33] = value
        return right

    return fault


def no_answer(_right):
    """What torch raises for a device that is gone."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


DEVICES = {
    "right": (lambda right: right, None),
    "all a little off": (lambda right: 1.01 * right, WorkerFault),
    "one element a little off": (with_element(129.0), WorkerFault),
    "one flipped sign": (with_element(-128.0), WorkerFault),
    "one flipped bit of an exponent": (with_element(256.0), WorkerFault),
    "one NaN": (with_element(torch.nan), WorkerFault),
    "one infinity": (with_element(torch.inf), WorkerFault),
    "nothing was computed": (torch.zeros_like, WorkerFault),
    "the result of another size": (lambda right: right[:64], WorkerFault),
    "no answer": (no_answer, RuntimeError),
}


@pytest.mark.parametrize(("fault", "error"), DEVICES.values(), ids=DEVICES)
def test_the_health_probe_of_admission(monkeypatch, fault, error):
    """A wrong product is this worker's fault, and no wrong input: that would end the whole job."""
    ones = torch.ones

    def made(*size, **rest):
        tensor = ones(*size, **rest).as_subclass(Product)
        tensor.fault = fault
        return tensor

    monkeypatch.setattr(worker_context.torch, "ones", made)
    if error is None:
        worker_context.prove_health(CPU)
        return
    with pytest.raises(error) as caught:
        worker_context.prove_health(CPU)
    assert not isinstance(caught.value, UserError)
    assert ("cpu computes wrongly" in str(caught.value)) == (error is WorkerFault)


@pytest.mark.parametrize("wanted", [None, "eth0", "eth0:1", "dummy0", "eth1"])
def test_an_interface_is_one_that_the_kernel_or_gloo_knows(monkeypatch, wanted):
    """A label of an address, or an interface without any address, has only one of the two."""
    monkeypatch.setattr(
        worker_context.psutil, "net_if_addrs", lambda: {"lo": [], "eth0": [], "eth0:1": []}
    )
    known = SimpleNamespace(if_nameindex=lambda: [(1, "lo"), (2, "eth0"), (3, "dummy0")])
    monkeypatch.setattr(worker_context, "socket", known)
    identity, node = WorkerIdentity(worker=WorkerId("beta", 0)), NodeSettings(interface=wanted)
    place = LaunchSettings(launch=WorkerLaunch(identity=identity, node=node))
    if wanted == "eth1":
        with pytest.raises(UserError, match=r"eth1: node beta .* it has dummy0, eth0, eth0:1, lo"):
            worker_context.check_interface(place)
    else:
        worker_context.check_interface(place)


def test_a_device_that_is_emulated_otherwise_is_another_one():
    """What was measured of it is not taken for that of another speed."""
    kinds = [
        None,
        EmulateSettings(relative_speed=0.5),
        EmulateSettings(relative_speed=0.25),
        EmulateSettings(seconds_per_sample=0.5),
        EmulateSettings(seconds_per_sample=0.5, overhead_seconds=0.1),
        EmulateSettings(relative_speed=0.5, noise_ratio=0.1),
        EmulateSettings(relative_speed=0.5, spike_probability=0.1, spike_ratio=3.0),
    ]
    told = [describe_device(CPU, kind) for kind in kinds]
    assert len(set(told)) == len(kinds)
    assert told[1] == f"{told[0]}, emulated: relative_speed 0.5"
    seed = EmulateSettings(relative_speed=0.5, noise_seed=7)
    assert describe_device(CPU, seed) == told[1], "its speed does not depend on that"
