"""What a worker finds at the other end of a route."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import ExitStack, closing

import msgspec
import pytest

from hetero_hvd.messages import GlooAddress, RouteAsked
from hetero_hvd.worker.session import route_probe
from hetero_hvd.worker.session.route_probe import RouteProbe, ports_of_the_kernel, try_to_reach


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Nobody answers late here."""
    monkeypatch.setattr(route_probe, "TRY_SECONDS", 0.3)


def at(port, greeting="greeting"):
    """Where something listens."""
    return GlooAddress(address="127.0.0.1", port=port, greeting=greeting, ports=(1, 2))


def the_worker(stack):
    """The right one."""
    probe = RouteProbe()
    stack.callback(probe.close)
    return probe.listen("lo")


def another_worker(stack):
    """With another greeting."""
    return msgspec.structs.replace(the_worker(stack), greeting="0" * 16)


def nobody(stack):  # noqa: ARG001 - all have the same shape
    """A port that was free a moment ago."""
    with closing(socket.create_server(("127.0.0.1", 0))) as end:
        return at(end.getsockname()[1])


def saying(stack, words):
    """A listener that says something and goes."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def serve():
        end, _ = server.accept()
        end.sendall(words)
        end.close()

    threading.Thread(target=serve, daemon=True).start()
    return at(server.getsockname()[1])


def silent(stack):
    """Connected by the kernel; the script holds its interpreter."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return at(server.getsockname()[1])


def overrun(stack):
    """Its queue is full: the kernel drops what comes, as a firewall would."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(3):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(server.getsockname())
    time.sleep(0.05)
    return at(server.getsockname()[1])


def no_route(stack):  # noqa: ARG001
    """An address that the kernel connects to nothing."""
    return msgspec.structs.replace(at(1), address="255.255.255.255")


KINDS = {
    "the worker": (the_worker, ""),
    "silent": (silent, ""),
    "another worker": (another_worker, "another machine has this address"),
    "another program": (lambda stack: saying(stack, b"SSH-2.0"), "another machine"),
    "the beginning of the greeting": (lambda stack: saying(stack, b"gree"), "another machine"),
    "who says nothing and goes": (lambda stack: saying(stack, b""), "another machine"),
    "nobody": (nobody, "refused"),
    "packets are dropped": (overrun, "packets are dropped on the way"),
    "no route": (no_route, "unreachable|denied"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_end_of_a_route_has_its_words(kind):
    """Only a fault that Gloo would meet, too, is one."""
    make, expected = KINDS[kind]
    with ExitStack() as stack:
        fault = try_to_reach(make(stack))
    if expected:
        assert any(word in fault for word in expected.split("|")), fault
    else:
        assert fault == ""


def test_the_answer_comes_from_a_thread_of_its_own():
    """The channel goes on meanwhile."""
    with ExitStack() as stack:
        gloo = the_worker(stack)
        assert route_probe.ports_of_the_kernel() == gloo.ports
        answers = queue.Queue()
        RouteProbe().answer(RouteAsked(host="b-0", gloo=gloo), answers.put)
        answer = answers.get(timeout=5)
    assert (answer.host, answer.fault) == ("b-0", "")


def test_a_listener_is_made_once_and_ends():
    """A second channel tells the same address; after the end nobody answers."""
    probe = RouteProbe()
    gloo = probe.listen("lo")
    assert probe.listen("none") == gloo
    assert try_to_reach(gloo) == ""
    probe.close()
    assert "refused" in try_to_reach(gloo)


def test_an_interface_without_an_address_is_not_tried():
    """The driver hears of none, and refuses nobody."""
    assert RouteProbe().listen("no-such-interface") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("32768\t60999\n", (32768, 60999)), ("", (1024, 65535)), (None, (1024, 65535))],
)
def test_the_ports_of_the_kernel(tmp_path, text, expected):
    """What is not told is all that it may be."""
    file = tmp_path / "range"
    if text is not None:
        file.write_text(text)
    assert ports_of_the_kernel(file) == expected
