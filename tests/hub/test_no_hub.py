"""A hub that cannot be: where it is to listen, by what it is told."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from types import SimpleNamespace

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import TryAgainError
from hetero_hvd.hub.service import _listen
from tests.hub.rig import free_port

NO_HUB = {
    "a port that is taken": (("--listen={taken}",), 75, "--listen: UDP port {taken}: Address alr"),
    "an address of another": (
        ("--listen={free}", "--address=192.0.2.1"), 2,
        "--address: cannot listen at 192.0.2.1: Cannot assign requested address; it is no address"),
    "an address of all": (("--address=::",), 2, "--address: found '::', must be one by which"),
    "an address of all in IPv6": (
        ("--address=::ffff:0.0.0.0",), 2, "--address: found '::ffff:0.0.0.0', must be one by"),
    "a port of orders that is taken": (
        ("--port={taken_tcp}",), 75,
        "--port: cannot listen at port {taken_tcp}: Address already in use; does another hub"),
    "two ports": (
        ("--listen={free}", "--listen=0"), 2, "argument --listen: given twice, may be given once"),
    "the same port twice": (
        ("--listen={free}", "--listen={free}"), 2, "argument --listen: given twice, may be given"),
    "two stores": (
        ("--store=a", "--store=b"), 2, "argument --store: given twice, may be given once"),
    "no key": (("--listen={free}", "--key-file=none"), 2, "none: "),
    "no port": (("--listen=x",), 2, "--listen: found 'x', must be an integer from 0 to 65535"),
    "that of multicast": (("--listen=5353",), 2, "--listen: found 5353, must be another port"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_HUB)
def test_a_hub_that_cannot_listen_ends_with_one_line(tmp_path, monkeypatch, capsys, case):
    """And with the code that tells whether the same may succeed later."""
    flags, code, words = NO_HUB[case]
    monkeypatch.chdir(tmp_path)
    main(["key"])
    capsys.readouterr()
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other, socket.socket() as hub:
        other.bind(("::", 0))
        hub.bind(("", 0))
        hub.listen()
        ports = {"taken": other.getsockname()[1], "free": free_port()}
        ports["taken_tcp"] = hub.getsockname()[1]
        vector = [flag.format(**ports) for flag in flags]
        vector += [] if case == "a port of orders that is taken" else ["--port=0"]
        assert main(["hub", *vector]) == code
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"hetero-hvd: {words.format(**ports)}")


def test_an_address_that_nobody_gave_is_not_at_fault():
    """Where listening at all of them fails, as no descriptor is free."""

    async def listen(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    options = SimpleNamespace(address=None, port=9000)
    with pytest.raises(TryAgainError, match=r"^--port: cannot listen at port 9000: Too many open"):
        asyncio.run(_listen(SimpleNamespace(listen=listen), options))
