"""Which of the driver's addresses a node is told."""

import asyncio
import socket

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.network.endpoints import (
    DriverAddresses,
    Endpoints,
    address_towards,
    resolve,
)
from hetero_hvd.driver.nodes.host_resolver import HostResolver
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.probes.machine.route import route
from tests.driver.conftest import until

LOCAL = NodeConfig(name="alpha")
REMOTE = NodeConfig(name="beta", address="192.0.2.1")  # a documentation address: nobody has it


def test_a_local_job_stays_on_the_loopback():
    """Nothing of it can be reached from outside, nor need be."""
    addresses = DriverAddresses((LOCAL,), None)
    assert addresses.towards(LOCAL) == "127.0.0.1"


def test_a_remote_node_cannot_join_a_job_on_the_loopback(monkeypatch):
    """Its workers could not reach the local ones; the message says what to do."""
    monkeypatch.setattr("hetero_hvd.driver.network.endpoints.address_towards", lambda _: "10.0.0.1")
    addresses = DriverAddresses((LOCAL,), None)
    with pytest.raises(JobError, match=r"node beta: .*set job\.driver_address"):
        addresses.towards(REMOTE)


def test_local_workers_of_a_mixed_job_use_an_outside_address(monkeypatch):
    """So that Gloo listens where the remote ones can reach it."""
    monkeypatch.setattr("hetero_hvd.driver.network.endpoints.address_towards", lambda _: "10.0.0.1")
    addresses = DriverAddresses((LOCAL, REMOTE), None)
    assert addresses.towards(LOCAL) == addresses.towards(REMOTE) == "10.0.0.1"


def test_a_given_driver_address_is_used_for_all():
    """Also for local nodes; a name is resolved once, here."""
    addresses = DriverAddresses((LOCAL, REMOTE), "localhost")
    assert addresses.towards(LOCAL) == addresses.towards(REMOTE) == "127.0.0.1"
    with pytest.raises(JobError, match="driver_address"):
        DriverAddresses((LOCAL,), "no.such.host.invalid")


def test_the_kernel_is_asked_for_the_way():
    """The address is that of the interface which leads to the node; nothing is sent."""
    assert address_towards(NodeConfig(name="a", address="127.0.0.2")) == "127.0.0.1"
    with pytest.raises(JobError, match=r"node a: no route to no\.such\.host\.invalid"):
        address_towards(NodeConfig(name="a", address="no.such.host.invalid", launcher="ssh"))


class Listener:
    """Opens a real port."""

    def __init__(self):
        self.opened = []

    async def listen(self, address):
        """See `network.Listener`."""
        with socket.create_server((address, 0)) as server:
            self.opened.append(address)
            return server.getsockname()[1]


def test_each_address_is_opened_once():
    """A port for each address that some node needs, however many ask at the same time."""

    async def scenario():
        channels = Listener()
        endpoints = Endpoints(DriverAddresses((LOCAL,), None), channels)
        found = await asyncio.gather(*(endpoints.towards(LOCAL) for _ in range(5)))
        assert len(set(found)) == 1
        assert channels.opened == ["127.0.0.1"]
        foreign = Endpoints(DriverAddresses((LOCAL,), "192.0.2.1"), channels)
        with pytest.raises(JobError, match=r"cannot listen on 192\.0\.2\.1"):
            await foreign.towards(LOCAL)

    asyncio.run(scenario())


NO_HOSTS = {
    "two dots": "a..b",
    "a label that is too long": "a" * 64,
    "one of several": "a" * 64 + ".b",
}


@pytest.mark.parametrize("name", NO_HOSTS.values(), ids=NO_HOSTS)
def test_a_name_that_cannot_be_looked_up_is_one_that_is_unknown(name):
    """In one line where it is needed; ssh may know it."""
    with pytest.raises(JobError, match=r"job\.driver_address: a"):
        resolve(name)
    with pytest.raises(UserError, match=r"--towards a.*: no address"):
        route((), name)

    async def addresses():
        resolver = HostResolver()
        await until(lambda: resolver.look_up([name]))
        return resolver.addresses(name)

    assert asyncio.run(addresses()) == {name}
