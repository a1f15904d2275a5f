"""What a worker looks at before the others count on it."""

from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.errors import UserError, WorkerFault
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import NodeSettings, WorkerIdentity, WorkerLaunch
from hetero_hvd.worker.session import worker_context
from hetero_hvd.worker.session.launch_settings import LaunchSettings

CPU = torch.device("cpu")


def test_a_device_that_computes_wrongly_is_one_worker_s_fault(monkeypatch):
    """Not wrong input, with which the job ends: the others go on without this worker."""
    worker_context.prove_health(CPU)
    ones = torch.ones
    monkeypatch.setattr(
        worker_context.torch, "ones", lambda *size, **rest: 1.01 * ones(*size, **rest)
    )
    with pytest.raises(WorkerFault, match="cpu computes wrongly") as caught:
        worker_context.prove_health(CPU)
    assert not isinstance(caught.value, UserError)


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
