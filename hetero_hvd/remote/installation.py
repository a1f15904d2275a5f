"""hetero_hvd on nodes that have a Python and sshd, and nothing else."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.ssh import INSTALLED
from hetero_hvd.errors import NodeError, UserError
from hetero_hvd.remote.bundle import Bundle
from hetero_hvd.remote.node_program import Input, NodeProgram

LOOK_SECONDS = 60.0
"""For ssh and a slow disk."""

WAIT_SECONDS = 1800.0
"""For somebody else who is just installing there."""

SILENCE_SECONDS = 300.0
"""Without that a node takes more; importing torch for the first time is in it."""

ROOM = 1.2
"""Disk space that is needed, as a multiple of the files: also what Python compiles."""

STEP_RATIO = 0.25
"""How often progress is told."""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What became of one node.

    Attributes:
        node: Its name.
        is_good: Whether it has what it should have now.
        what: In words.
        remedy: What to do; empty if nothing.
        seconds: How long it took.
    """

    node: str
    is_good: bool
    what: str
    remedy: str = ""
    seconds: float = 0.0


def install_all(
    nodes: Sequence[NodeConfig], bundle: Bundle, say: Callable[[str], None], *, is_forced: bool
) -> list[Installed]:
    """Install on several nodes at a time.

    Args:
        nodes: Those that ssh reaches.
        bundle: What they should have.
        say: Is told of the progress, by several threads.
        is_forced: Also where it is there already.
    """

    def on_one(node: NodeConfig) -> Installed:
        begin_seconds = time.monotonic()
        try:
            what = _install(node, bundle, say, is_forced=is_forced)
        except NodeError as error:
            say(f"{node.name}: {error.what}")
            found = Installed(node=node.name, is_good=False, what=error.what, remedy=error.remedy)
        except UserError as error:
            found = Installed(node=node.name, is_good=False, what=str(error))
        else:
            found = Installed(node=node.name, is_good=True, what=what)
        seconds = time.monotonic() - begin_seconds
        return Installed(**(vars(found) | {"seconds": seconds}))

    with ThreadPoolExecutor(max(len(nodes), 1)) as pool:
        return list(pool.map(on_one, nodes))


def environment_path(node: NodeConfig) -> str:
    """Where a node's environment belongs: where its `python` in nodes.yaml is, if it has one.

    Raises:
        NodeError: That cannot be in an environment.
    """
    if node.python is None:
        return INSTALLED
    if node.python.startswith("~"):
        what = f"python: {node.python} of nodes.yaml: the home of another user is not looked up"
        raise NodeError(what, "write ~/ for the home of who logs in, or a whole path")
    python = PurePosixPath(node.python)
    is_named = python.parent.name == "bin" and python.name.startswith("python")
    if not is_named or python.parent.parent.name in ("", ".."):
        what = f"python: {node.python} of nodes.yaml is not in an environment"
        raise NodeError(what, "name it PATH/bin/python, or leave it out")
    return str(python.parent.parent)


def _install(
    node: NodeConfig, bundle: Bundle, say: Callable[[str], None], *, is_forced: bool
) -> str:
    """Install on one node; what became of it, in words.

    Raises:
        NodeError: It cannot be done.
    """
    path = environment_path(node)
    major, minor = bundle.python.split(".")
    fits = f"import sys, venv; sys.exit(sys.version_info[:2] != ({major}, {minor}))"
    bases = (f"python{bundle.python}", "python3", f"{sys.base_prefix}/bin/python{bundle.python}")
    with NodeProgram(node, "environment_program", interpreters=bases, fits=fits) as program:
        try:
            facts = _look(program, path, lambda words: say(f"{node.name}: {words}"))
        except NodeError as error:
            raise _in_words(error, bundle) from error
        if facts["fingerprint"] == bundle.fingerprint and not is_forced:
            return f"is there already: {facts['path']}"
        _check(facts, bundle)
        begin_seconds = time.monotonic()
        megabytes = bundle.num_bytes / 1e6
        say(f"{node.name}: sending {megabytes:.0f} MB to {facts['path']}")
        order = {
            "path": path,
            "fingerprint": bundle.fingerprint,
            "num_files": len(bundle.files),
            "imports": bundle.imports,
        }
        python = program.ask(
            "install",
            order,
            seconds=SILENCE_SECONDS,
            payload=lambda stream: _send(stream, bundle, node.name, say),
        )
    seconds = time.monotonic() - begin_seconds
    gone = bundle.lacks(facts["packages"])
    options = " ".join(f"--with {name}" for name in gone)
    lost = f"; not there any more, as it was not asked for: {', '.join(gone)} ({options})"
    return f"installed: {python}, {megabytes:.0f} MB in {seconds:.0f} s{lost if gone else ''}"


def _look(program: NodeProgram, path: str, say: Callable[[str], None]) -> dict[str, Any]:
    """What is there, as soon as nobody else is installing there.

    Raises:
        NodeError: Somebody does for too long, or it cannot be said.
    """
    begin_seconds = time.monotonic()
    facts: dict[str, Any] = program.ask("look", {"path": path}, seconds=LOOK_SECONDS)
    if facts["is_busy"]:
        say(f"somebody else is installing at {facts['path']}: waiting")
    while facts["is_busy"]:
        if time.monotonic() - begin_seconds > WAIT_SECONDS:
            what = f"somebody else has been installing at {facts['path']} for {WAIT_SECONDS:g} s"
            raise NodeError(what, "let that end, and try again")
        time.sleep(1.0)
        facts = program.ask("look", {"path": path}, seconds=LOOK_SECONDS)
    return facts


def _send(stream: Input, bundle: Bundle, name: str, say: Callable[[str], None]) -> None:
    """Send the files and tell how far that is."""
    next_ratio = STEP_RATIO

    def on_bytes(done: int) -> None:
        nonlocal next_ratio
        if done >= next_ratio * bundle.num_bytes:
            say(f"{name}: {100 * done / bundle.num_bytes:.0f} % sent")
            next_ratio = (int(done / bundle.num_bytes / STEP_RATIO) + 1) * STEP_RATIO

    bundle.write(stream, on_bytes)
    say(f"{name}: trying {', '.join(bundle.imports)}")


def _in_words(error: NodeError, bundle: Bundle) -> NodeError:
    """What to do where there is no Python that fits."""
    if not error.what.startswith("no Python that fits"):
        return error
    version = bundle.python
    return NodeError(
        f"{error.what}; what is installed here needs Python {version} with venv",
        f"install it there (Debian, Ubuntu: apt-get install python{version} python{version}-venv), "
        "or run the driver with a Python that the nodes have",
    )


def _check(facts: dict[str, Any], bundle: Bundle) -> None:
    """Refuse a node before anything is sent to it.

    Raises:
        NodeError: What is installed here does not fit there.
    """
    path = facts["path"]
    for key, what, own in (
        ("machine", "processor", platform.machine()),
        ("libc", "C library", platform.libc_ver()[0]),
    ):
        if facts[key] != own:
            raise NodeError(
                f"its {what} is {facts[key] or 'unknown'}, this machine's is {own}",
                "set up an environment there by hand, with the same versions, "
                "and name its python in nodes.yaml",
            )
    if facts["is_foreign"]:
        raise NodeError(
            f"{path} is there and was not made by hetero-hvd install",
            "name another python in nodes.yaml, leave it out, or move that folder away",
        )
    needed = ROOM * bundle.num_bytes
    if facts["free_bytes"] < needed:
        raise NodeError(
            f"{facts['free_bytes'] / 1e9:.1f} GB are free at {path}, {needed / 1e9:.1f} are needed",
            "make room there, or name a python on another disk in nodes.yaml",
        )
