"""A member that the driver may have replaced stops itself; cut connections end every wait."""

import os
import socket
import time

import pytest

from hetero_hvd import channel
from hetero_hvd.messages import Admit, MemberLost
from hetero_hvd.worker.comm.horovod import HorovodCollective
from hetero_hvd.worker.comm.sockets import connections, cut, open_sockets
from hetero_hvd.worker.session import driver_client as client_module
from tests.worker.session.test_driver_client import Driver, pair, start, wait_for  # noqa: F401 - `start` is a fixture


def test_the_lease_ends_when_the_driver_is_silent(start, monkeypatch):  # noqa: F811
    """The rendezvous under way is void then, so that no wait for a peer keeps it from leaving."""
    voided = []
    driver, client, tell = pair(start, on_void=lambda: voided.append(time.monotonic()))
    tell(Admit(environment={}, rendezvous_id=0))
    client.wait_for_admission()
    assert not client.is_cut_off
    monkeypatch.setattr(client_module, "LEASE_SECONDS", 0.5)
    driver.close()
    wait_for(lambda: client.is_cut_off and voided)
    assert len(voided) == 1
    assert not client.is_given_up
    monkeypatch.setattr(client_module, "REUNION_SECONDS", 0.5)
    wait_for(lambda: client.is_given_up)


def test_a_driver_that_was_paused_finds_its_members_again(start, monkeypatch):  # noqa: F811
    """The lease goes on when it answers, and can end again."""
    monkeypatch.setattr(client_module, "LEASE_SECONDS", 0.5)
    voided = []
    driver, client, tell = pair(start, on_void=lambda: voided.append(time.monotonic()))
    tell(Admit(environment={}, rendezvous_id=0))
    client.wait_for_admission()
    for _ in range(2):
        voided.clear()
        driver.close()
        wait_for(lambda: client.is_cut_off and voided)
        driver = start(Driver, driver.job, driver.port)
        driver.next_connection()
        wait_for(lambda: not client.is_cut_off)
        assert not client.is_given_up


def test_a_worker_that_was_replaced_does_not_wait(start):  # noqa: F811
    """The driver says so itself, and proves that it is the driver."""
    voided = []
    driver, client, tell = pair(start, on_void=lambda: voided.append(time.monotonic()))
    tell(Admit(environment={}, rendezvous_id=0))
    client.wait_for_admission()
    driver.close()
    start(Driver, driver.job, driver.port, close_code=channel.NOT_EXPECTED)
    wait_for(lambda: client.is_given_up and voided)
    assert len(voided) == 1


def test_a_lost_member_ends_the_rendezvous_it_was_in(start):  # noqa: F811
    """The driver's word reaches the one who can end it; another admission changes nothing."""
    broken, voided = [], []
    told = {"on_member_lost": broken.append, "on_void": lambda: voided.append(1)}
    _, _, tell = pair(start, **told)
    for rendezvous_id in (3, 4):
        tell(Admit(environment={}, rendezvous_id=rendezvous_id))
        tell(MemberLost(host="beta-0", rendezvous_id=rendezvous_id))
    wait_for(lambda: len(broken) == 2)
    assert broken == [3, 4]
    assert not voided


def tcp():
    """Both ends of a connection, and the port that the first one is connected to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=5)
        far, _ = server.accept()
        far.settimeout(5)
        return near, far, server.getsockname()[1]


@pytest.mark.parametrize(("generation", "is_cut"), [(None, True), (0, True), (-1, False)])
def test_news_of_an_earlier_rendezvous_come_too_late(generation, is_cut):
    """Only connections of the rendezvous that is meant are cut."""
    collective = HorovodCollective(elastic=True, is_unwanted=lambda: False)
    one, other, _ = tcp()
    with one, other:
        one.setblocking(False)
        collective.cut(generation)
        if is_cut:
            assert one.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                one.recv(1)


def test_a_cut_ends_waits_but_not_those_at_the_driver():
    """Connections and listening sockets end; one to the driver's port and other kinds do not."""
    before = open_sockets()
    near, far, _ = tcp()
    to_driver, at_driver, spared = tcp()
    one, other = socket.socketpair()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with near, far, to_driver, at_driver, one, other, datagrams:
        with socket.create_server(("127.0.0.1", 0)) as server:
            opened = dict(open_sockets().items() - before.items())
            del opened[at_driver.fileno()]
            cut(opened, except_port=spared)
            assert near.recv(1) == far.recv(1) == b""
            with pytest.raises(OSError, match="Invalid argument"):
                server.accept()
        to_driver.sendall(b"x")
        one.sendall(b"x")
        assert at_driver.recv(1) == other.recv(1) == b"x"
        datagrams.bind(("127.0.0.1", 0))
        datagrams.sendto(b"x", datagrams.getsockname())
        assert datagrams.recv(1) == b"x"
    cut(opened, except_port=0)  # all are closed or something else by now: nothing happens


def test_a_descriptor_that_was_opened_again_is_left_alone():
    """The number is the same, the socket is another one: it is no connection of Horovod's."""
    before = open_sockets()
    near, far, _ = tcp()
    opened = dict(open_sockets().items() - before.items())
    assert set(connections(opened)) == {near.fileno(), far.fileno()}
    fresh, behind, _ = tcp()
    with near, far, fresh, behind:
        os.dup2(fresh.fileno(), near.fileno())
        os.dup2(behind.fileno(), far.fileno())
        assert connections(opened) == {}
        cut(opened, except_port=0)
        near.sendall(b"x")
        assert far.recv(1) == b"x"
