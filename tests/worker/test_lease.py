"""A member that the driver may have replaced stops itself; cut connections end every wait."""

import socket
import time

import pytest

from hetero_hvd.messages import Admit, MemberLost
from hetero_hvd.worker import client as client_module
from hetero_hvd.worker.collective import HorovodCollective
from hetero_hvd.worker.sockets import cut, open_sockets

from .test_client import Driver, pair, start, wait_for  # noqa: F401 - `start` is a fixture


def test_the_lease_ends_when_the_driver_is_silent(start, monkeypatch):  # noqa: F811
    """The rendezvous under way is void then, so that no wait for a peer keeps it from leaving."""
    monkeypatch.setattr(client_module, "LEASE_SECONDS", 0.5)
    driver, client, tell = pair(start)
    voided = []
    client.on_void = lambda: voided.append(time.monotonic())
    tell(Admit(environment={}, rendezvous_id=0))
    client.wait_for_admission()
    assert not client.is_cut_off
    driver.close()
    wait_for(lambda: client.is_cut_off)
    assert len(voided) == 1


def test_a_lost_member_ends_the_rendezvous_it_was_in(start):  # noqa: F811
    """The driver's word reaches the one who can end it; another admission changes nothing."""
    _, client, tell = pair(start)
    broken, voided = [], []
    client.on_member_lost, client.on_void = broken.append, lambda: voided.append(1)
    for rendezvous_id in (3, 4):
        tell(Admit(environment={}, rendezvous_id=rendezvous_id))
        tell(MemberLost(host="beta-0", rendezvous_id=rendezvous_id))
    wait_for(lambda: len(broken) == 2)
    assert broken == [3, 4]
    assert not voided


@pytest.mark.parametrize(("generation", "is_cut"), [(None, True), (0, True), (-1, False)])
def test_news_of_an_earlier_rendezvous_come_too_late(generation, is_cut):
    """Only connections of the rendezvous that is meant are cut."""
    collective = HorovodCollective(elastic=True, is_unwanted=lambda: False)
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        collective.cut(generation)
        if is_cut:
            assert one.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                one.recv(1)


def test_a_cut_ends_waits_but_not_those_at_the_driver():
    """Connected and listening sockets end; foreign ones and those to one port do not."""
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as server:
        spared = server.getsockname()[1]
        with socket.create_connection(server.getsockname()) as to_driver:
            accepted, _ = server.accept()
            one, other = socket.socketpair()
            opened = dict(open_sockets().items() - before.items())
            listening = server.fileno()
            cut({fd: n for fd, n in opened.items() if fd != listening}, except_port=spared)
            assert one.recv(1) == b""
            assert other.recv(1) == b""
            to_driver.settimeout(0.05)
            assert accepted.recv(1) == b""  # its peer's port is not the one that is spared
            for end in (accepted, one, other):
                end.close()
    cut(opened, except_port=0)  # all are closed or something else by now: nothing happens
