"""Flags of the commands of a hub: what is none, or is said in vain, is one line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.record.record import _lines
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from tests.hub.test_store import batch, clocks, opened

__all__ = ["clocks", "opened"]

LONG = "9" * 5000
"""More digits than Python reads."""

NO_AMOUNTS = ("", "0", "-1", "1.5", "x", "²", LONG)
NO_SPANS = (
    "", "0", "0s", "0.0d", "-1s", "1", "1w", "x", "nan", "1e3s", "\u0661s", "9999999d", f"{LONG}d",
    "\udcff",
)  # fmt: skip
NO_TIMES = (
    "", "now", "x", "2026-02-30", "2016-12-31T23:59:60", "10000-01-01", "-1h", "1h ",
    f"{LONG}s", "\udcff",
)  # fmt: skip
NO_NAMES = (
    "", "..", "a/b", "a b", "a\nb", "-x", "x-", "x" * 65, "\u00e9", "\u0430", "\udcff", "\x1b[31m",
)  # fmt: skip
NO_NODES = ("", ",", "a,,b", "a,", " a", "../x", "a\nb", "\udcff", "x" * 65)
NO_PORTS = ("", "-1", "65536", "x", "²", LONG)
CASES = [
    *((["hub"], "--keep-bytes", text) for text in NO_AMOUNTS),
    *((["record", "start", "one"], "--keep-bytes", text) for text in NO_AMOUNTS),
    *((["hub"], flag, text) for flag in ("--port", "--listen", "--http-port") for text in NO_PORTS),
    *((["hub"], "--keep", text) for text in NO_SPANS),
    *(
        (["record", "start", "one"], flag, text)
        for flag in ("--keep", "--every")
        for text in NO_SPANS
    ),
    *((["record", "cut", "one"], flag, text) for flag in ("--from", "--to") for text in NO_TIMES),
    *((["record", "start", "one"], "--nodes", text) for text in NO_NODES),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0][0]} {case[1]}={case[2][:5]}")
def test_what_is_no_number_is_one_line(tmp_path, monkeypatch, capsys, case):
    """Before a port is had or a hub is asked."""
    command, flag, text = case
    monkeypatch.chdir(tmp_path)
    assert main(["key"]) == 0
    capsys.readouterr()
    assert main([*command, f"{flag}={text}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hetero-hvd: {flag}: found")


NAMED = ("start", "stop", "cut", "recover")
IN_VAIN = {
    "start": (("x", "--from=1h"), ("x", "--to=1h"), ("x", "--resume")),
    "stop": (("x", "--keep=1d"), ("--from=1h",), ("x", "--nodes=a")),
    "status": (("x",), ("--every=1s",), ("--resume",)),
    "cut": (("x", "--every=1s"), ("x", "--keep=1d"), ("x", "--keep-bytes=9"), ("x", "--resume")),
    "recover": (("--every=1s",), ("--resume",), ("x", "--from=1h"), ("--nodes=a",)),
}
WORDS = [
    *((action, (name,)) for action in NAMED for name in NO_NAMES if not name.startswith("-")),
    *((action, words) for action, found in IN_VAIN.items() for words in found),
]


@pytest.mark.parametrize("case", WORDS, ids=lambda case: f"{case[0]} {case[1]!a:.30}")
def test_what_is_said_in_vain_is_one_line(tmp_path, monkeypatch, capsys, case):
    """A name that is none, or a flag of another action: nothing is passed over in silence."""
    action, words = case
    monkeypatch.chdir(tmp_path)
    assert main(["record", action, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith((f"hetero-hvd: record {action}", "hetero-hvd: session"))


API = ("--http-port=1",)
BAD_API = {
    "no port": (("--http-cors=https://a.lab",), "--http-cors: needs --http-port"),
    "no port for a token": (("--http-read-token-file=token",), "needs --http-port"),
    "a key alone": ((*API, "--http-key=x"), "--http-certificate: must be given together"),
    "a certificate alone": ((*API, "--http-certificate=x"), "must be given together with"),
    "no address": ((*API, "--http-address="), "--http-address: found"),
    "bytes for an address": ((*API, "--http-address=\udcff"), "--http-address: found"),
    **{
        f"an origin {text!a}": ((*API, f"--http-cors={text}"), "--http-cors: found")
        for text in (
            "",
            "*",
            "null",
            "a.lab",
            "https://a.lab/",
            "https://A.lab",
            "http://[",
            "a\nb",
        )
    },
    **{
        f"a certificate that is {what}": (
            (*API, f"--http-certificate={what}", "--http-key=cluster.key"),
            "--http-certificate: cannot be used",
        )
        for what in ("pipe", "folder", "missing", "cluster.key", "loop", "/dev/zero", "x" * 5000)
    },
}


@pytest.mark.parametrize(("flags", "words"), BAD_API.values(), ids=lambda _: "")
def test_an_api_that_cannot_be_is_one_line(tmp_path, monkeypatch, capsys, flags, words):
    """Which names the flag; nobody waits at a pipe."""
    monkeypatch.chdir(tmp_path)
    assert main(["key"]) == 0
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    capsys.readouterr()
    assert main(["hub", "--address=127.0.0.1", "--port=0", *flags]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("hetero-hvd: --http-")
    assert words in line


BAD_SPOOLS = {
    "no hub": (("--spool=x",), "--spool needs --hub"),
    "no hub for its room": (("--spool-bytes=100000",), "--spool-bytes needs --hub"),
    **{
        what: (("--hub=127.0.0.1:9", f"--spool={what}"), f"--spool: {what}: cannot be used: ")
        for what in ("cluster.key", "pipe", "loop", "/dev/null", "/proc/x", "x" * 300)
    },
}


@pytest.mark.parametrize(("flags", "words"), BAD_SPOOLS.values(), ids=lambda _: "")
def test_a_spool_that_cannot_be_is_one_line(tmp_path, monkeypatch, capsys, flags, words):
    """Which says where and what the system says."""
    monkeypatch.chdir(tmp_path)
    assert main(["key"]) == 0
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    capsys.readouterr()
    assert main(["agent", "--address=127.0.0.1", "--port=0", *flags]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hetero-hvd: {words}")
    assert "Errno" not in line


UNKNOWN = {
    "a typo": (["alhpa"], ["alpha", "beta"], "did you mean alpha?"),
    "another one": (["x"], ["alpha", "beta"], "there are alpha, beta"),
    "no node yet": (["x"], [], "there are none"),
}


@pytest.mark.parametrize("action", ["start", "cut"])
@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_node_that_was_never_heard_of_is_told_as_such(opened, action, kind):
    """It may come yet, so the recording begins; who meant another one sees it."""
    wanted, known, words = UNKNOWN[kind]
    store = opened()
    store.commit([batch(1, 1, stream=name, node=name) for name in known])
    commands = HubCommands(store, Fleet(store, lambda: 0.0))
    asked = {"name": "one", "nodes": [*wanted, *known[1:]], "from": 1.0}
    lines = _lines(action, asyncio.run(commands.act(action, asked)))
    never = f"  {wanted[0]}: the hub has never heard of a node of that name; {words}"
    assert lines[-1] == never
    silent = [line for line in lines if "not heard now" in line]
    assert not any(name in line for line in silent for name in wanted)
