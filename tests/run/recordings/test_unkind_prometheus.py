"""However slowly a server sends, and however it breaks off: one time for all, and one line."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from hetero_hvd.cli import main
from hetero_hvd.run.recordings import prometheus_api

ANSWER_SECONDS = 0.3
OK = b"HTTP/1.1 200 OK\r\n"


def forever(begin, again):
    """Something, and then a little again and again, for as long as anybody listens."""

    def act(connection, is_closing):
        connection.sendall(begin)
        while not is_closing.wait(0.01):
            connection.sendall(again)

    return act


def once(content, *, is_reset=False):
    """Something, and then the end."""

    def act(connection, _):
        connection.recv(2**16)
        connection.sendall(content)
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return act


def endless(connection, is_closing):
    """As fast as it is read."""
    connection.sendall(OK + b"\r\n")
    while not is_closing.is_set():
        connection.sendall(b" " * 2**16)


LATE = 75, "has not answered within 0.3 s"
UNKIND = {
    "no answer": (forever(b"", b""), *LATE),
    "a status that trickles": (forever(b"", b"H"), *LATE),
    "headers that trickle": (forever(OK, b"x"), *LATE),
    "headers without end": (forever(OK, b"a: b\r\n"), *LATE),
    "it goes on, again and again": (forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), *LATE),
    "a body that trickles": (forever(OK + b"Content-Length: 99999\r\n\r\n", b" "), *LATE),
    "pieces that trickle": (
        forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), *LATE),
    "a body without a length that trickles": (forever(OK + b"\r\n", b" "), *LATE),
    "a refusal that trickles": (forever(b"HTTP/1.1 503 no\r\n\r\n", b" "), 75, "status 503"),
    "an error that trickles": (
        forever(b"HTTP/1.1 400 no\r\n\r\n", b" "), 2, "status 400, and is no Prometheus there"),
    "a body without end": (endless, 2, "has answered with more than 1 MiB"),
    "a redirect to itself": (
        once(b"HTTP/1.1 302 Found\r\nLocation: /api/v1/query\r\nContent-Length: 0\r\n\r\n"),
        2, "it sends to /api/v1/query"),
    "a reset at once": (once(b"", is_reset=True), 75, ", 3 times"),
    "a reset in the headers": (once(OK + b"x", is_reset=True), 75, ", 3 times"),
    "a reset in the body": (
        once(OK + b"Content-Length: 99\r\n\r\n{", is_reset=True), 75, ", 3 times"),
    "the end at once": (once(b""), 75, ", 3 times"),
    "TLS that trickles": (forever(b"\x16\x03\x03\x40\x00\x02", b"\x00"), *LATE),
    "a proxy that trickles": (forever(b"", b"H"), *LATE),
}  # fmt: skip


@contextmanager
def served(act):
    """A server that treats each connection so; its port, and how many have come."""
    is_closing, threads, come = threading.Event(), [], []

    def serve(connection):
        with connection, suppress(OSError):
            act(connection, is_closing)

    def accept():
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                come.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield server.getsockname()[1], come
        finally:
            is_closing.set()
            server.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("name", UNKIND)
def test_whatever_a_server_does_the_question_ends_in_one_line(name, tmp_path, monkeypatch, capsys):
    """Within its time, of which all tries are a part; no thread and no connection is left."""
    act, code, words = UNKIND[name]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    is_late = words == LATE[1] or name == "an error that trickles"
    monkeypatch.setattr(prometheus_api, "ANSWER_SECONDS", ANSWER_SECONDS if is_late else 30.0)
    monkeypatch.setattr(prometheus_api, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(prometheus_api, "MAX_ANSWER_BYTES", 2**20)
    before = threading.active_count()
    with served(act) as (port, come):
        url = f"{'https' if 'TLS' in name else 'http'}://127.0.0.1:{port}"
        if "proxy" in name:
            monkeypatch.setenv("https_proxy", url)
            monkeypatch.delenv("no_proxy", raising=False)
            url = "https://prometheus.invalid"
        begin = time.monotonic()
        assert main(["advise", "--prometheus", url]) == code
        seconds = time.monotonic() - begin
        assert come, "nobody has asked"
        assert seconds < 20
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert threading.active_count() == before
