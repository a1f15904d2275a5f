"""One TLS connection, read by one thread and written by others."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import sys
import threading
import time

import pytest

from hetero_hvd.security.certificates import Authority
from hetero_hvd.security.tls import client_context, server_context
from hetero_hvd.security.tls_stream import TlsStream

OURS = Authority.new()
SERVER = server_context(OURS.issue("driver", roles=["server"]))
CLIENT = client_context(OURS.issue("alpha", roles=["client"]))


@contextlib.contextmanager
def other_end(serve, *, tls=SERVER):
    """A TCP connection whose other end is served in a thread; what that raised is in the list."""
    errors = []

    def run(accepted):
        try:
            with contextlib.ExitStack() as stack:
                end = stack.enter_context(accepted)
                serve(stack.enter_context(tls.wrap_socket(end, server_side=True)) if tls else end)
        except (OSError, ValueError) as error:
            errors.append(error)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        connected = socket.create_connection(listening.getsockname())
        thread = threading.Thread(target=run, args=(listening.accept()[0],))
    thread.start()
    try:
        yield connected, errors
    finally:
        thread.join(30)
        assert not thread.is_alive()


@contextlib.contextmanager
def meeting(serve, *, tls=SERVER):
    """A connection of ours to such an end; closed before that is waited for."""
    with other_end(serve, tls=tls) as (connected, errors):
        stream = TlsStream(connected, CLIENT, "driver", 20)
        with stream:
            yield stream, errors


def echo(end):
    """Give all back, until the end."""
    while data := end.recv(65536):
        end.sendall(data)


def messages_in(data):
    """Whole messages of what came: (writer, number), and the rest."""
    found = []
    while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "big")):
        found.append(tuple(data[4:6]))
        assert data[6 : 4 + size] == bytes([data[4]]) * (size - 2)
        data = data[4 + size :]
    return found, data


def converse(stream, *, num_writers, seconds):
    """Several threads write at once what one reads back; how many messages came."""
    ends = time.monotonic() + seconds
    sent = [0] * num_writers

    def write(writer):
        chance = random.Random(writer)  # noqa: S311 - no secret
        while time.monotonic() < ends:
            size = chance.choice((2, 100, 20_000, 70_000))
            body = bytes([writer, sent[writer] % 256]) + bytes([writer]) * (size - 2)
            stream.sendall(size.to_bytes(4, "big") + body)
            sent[writer] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(num_writers)]
    for thread in threads:
        thread.start()
    rest, heard = b"", [0] * num_writers
    while any(map(threading.Thread.is_alive, threads)) or heard != sent:
        stream.settimeout(20)
        found, rest = messages_in(rest + stream.recv())
        for writer, number in found:
            assert number == heard[writer] % 256
            heard[writer] += 1
    for thread in threads:
        thread.join()
    return sum(heard)


def test_threads_write_while_another_reads():
    """What each has sent comes back whole and in its order."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with meeting(echo) as (stream, errors):
            assert stream.gettimeout() is None
            assert converse(stream, num_writers=3, seconds=0.5) > 10
            stream.shutdown(socket.SHUT_RDWR)
        assert [type(error) for error in errors] in ([], [ssl.SSLEOFError])
    finally:
        sys.setswitchinterval(interval)


def in_memory(end):
    """The server's TLS over a connection, what it has to send, and what carries out its steps."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = SERVER.wrap_bio(incoming, outgoing, server_side=True)

    def until_done(step):
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                end.sendall(outgoing.read())
                incoming.write(end.recv(65536))

    until_done(tls.do_handshake)
    return tls, outgoing, until_done


def test_a_reader_that_waits_holds_up_no_writer():
    """Also when half a record has come, so that there is something to read and nothing to give."""
    half, goes_on, heard = threading.Event(), threading.Event(), []

    def serve(end):
        tls, outgoing, until_done = in_memory(end)
        tls.write(b"a whole record")
        record = outgoing.read()
        end.sendall(record[:-5])
        half.set()
        heard.append(until_done(lambda: tls.read(10)))
        end.sendall(record[-5:])
        goes_on.wait(20)

    found = []
    with meeting(serve, tls=None) as (stream, errors):
        assert half.wait(20)
        reader = threading.Thread(target=lambda: found.append(stream.recv()))
        reader.start()
        while stream._from_network.pending or not reader.is_alive():
            time.sleep(0.001)
        stream.sendall(b"written")
        reader.join(20)
        goes_on.set()
    assert (heard, found, errors) == ([b"written"], [b"a whole record"], [])


def test_nothing_stays_where_select_does_not_see_it():
    """Many records in one packet are read at once."""
    with meeting(lambda end: [end.sendall(b"x" * 50) for _ in range(100)]) as (stream, _):
        while stream._from_network.pending < 100 * 50:
            stream._from_network.write(socket.socket.recv(stream, 65536))
        assert stream.recv(10) == b"x" * 5000


def test_an_end_that_comes_with_the_last_data_is_seen_at_once():
    """The other end waits for ours: nothing more would come for select to wake at."""

    def serve(end):
        tls, outgoing, _ = in_memory(end)
        tls.write(b"last")
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        end.sendall(outgoing.read())
        assert end.recv(65536) == b""

    with meeting(serve, tls=None) as (stream, errors):
        assert stream.recv() == b"last"
        assert select.select([stream], [], [], 10)[0]
        assert stream.recv() == b""
    assert errors == []


ENDS = {
    "in order": lambda end: end.unwrap(),
    "without a word": lambda end: end.shutdown(socket.SHUT_RDWR),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_end_is_no_data(case):
    """In whatever way it comes; what came before is read first."""

    def serve(end):
        end.sendall(b"last")
        ENDS[case](end)

    with meeting(serve) as (stream, _):
        found = b""
        while chunk := stream.recv():
            found += chunk
        assert found == b"last"
        stream.close()


REFUSED = {
    "another name": (CLIENT, SERVER, "alpha", ssl.SSLCertVerificationError),
    "another authority": (
        CLIENT,
        server_context(Authority.new().issue("driver", roles=["server"])),
        "driver",
        ssl.SSLCertVerificationError,
    ),
    "plain text": (CLIENT, None, "driver", ssl.SSLError),
}


def answer_in_plain_text(end):
    """As a web server does."""
    end.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    end.recv(65536)


@pytest.mark.parametrize("case", REFUSED)
def test_who_is_not_the_other_end_is_refused(case):
    """And the connection is closed."""
    context, tls, name, kind = REFUSED[case]
    serve = answer_in_plain_text if tls is None else echo
    with other_end(serve, tls=tls) as (connected, _), pytest.raises(kind):
        TlsStream(connected, context, name, 20)
    assert connected.fileno() == -1


SLOW = {
    "silence": lambda end: end.recv(10**6) and end.recv(1),
    "byte by byte": lambda end: [
        (end.sendall(bytes([byte])), time.sleep(0.05)) for byte in b"\x16\x03\x03\x40\x00" * 40
    ],
    "the end": lambda end: end.recv(10),
}


@pytest.mark.parametrize("case", SLOW)
def test_a_handshake_has_its_time_and_no_more(case):
    """Whatever the other end does with it."""
    with other_end(SLOW[case], tls=None) as (connected, _):
        began = time.monotonic()
        with pytest.raises((TimeoutError, ConnectionError, ssl.SSLError)):
            TlsStream(connected, CLIENT, "driver", 0.5)
        assert time.monotonic() - began < 2.5


def test_what_is_not_genuine_ends_it():
    """A record that the other end has not encrypted."""
    gate = threading.Event()

    def serve(end):
        end.sendall(b"x")
        gate.wait(20)
        plain = socket.socket(fileno=end.detach())
        plain.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        plain.close()

    with meeting(serve) as (stream, _):
        assert stream.recv() == b"x"
        gate.set()
        with pytest.raises(ssl.SSLError):
            stream.recv()
