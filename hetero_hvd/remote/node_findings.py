"""What keeps a node from training, and what to do: from what was found out about it."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.launchers import SSH
from hetero_hvd.core.versions import Mismatch, compare
from hetero_hvd.driver.workers.launchers.ssh import interpreters
from hetero_hvd.messages import WorkerId
from hetero_hvd.probes.doctor import Problem
from hetero_hvd.remote.examination import NodeFacts

CLOCK_SECONDS = 1.0
"""Clocks that are further apart make logs hard to read, and certificates and adverts invalid."""

DISK_BYTES = 2**30
SHM_BYTES = 2**27
"""Of /dev/shm: loaders with processes pass batches through it; containers often have 64 MB."""

_NOT_FOR_NODES = ("is not installed in", "there is no ssh client")
"""In what a node's own diagnosis says: compared with the driver already, or of no use there."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a node is compared with: the driver.

    Attributes:
        versions: Of the driver's software.
        digest: Of the driver's hetero_hvd.
        script: Path and digest of the script; None if there is none.
        directory: Where the script is to run, on nodes without a `directory`.
    """

    versions: Mapping[str, str | None]
    digest: str | None
    script: tuple[str, str] | None
    directory: str


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """A node's row.

    Attributes:
        facts: What was found out.
        problems: What does not work, the worst first.
    """

    facts: NodeFacts
    problems: tuple[Problem, ...]

    @property
    def can_train(self) -> bool:
        """Whether a worker could train there."""
        return not any(problem.stops_training for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; nothing of the node's environment and keys."""
        facts = self.facts
        return {
            **facts.seen,
            "node": facts.node.name,
            "can_train": self.can_train,
            "problems": [asdict(problem) for problem in self.problems],
            "login_seconds": facts.login_seconds,
            "clock_offset_seconds": facts.clock_offset_seconds,
            "clock_error_seconds": facts.clock_error_seconds,
            "address": facts.address,
            "peers": facts.peers,
        }


def report_on(facts: NodeFacts, reference: Reference) -> NodeReport:
    """What does not work on a node."""
    if facts.failure is not None:
        problem = _stop(facts.failure.what, "there is no way to it", facts.failure.remedy)
        return NodeReport(facts=facts, problems=(problem,))
    try:
        problems = [
            *_software(facts, reference),
            *_files(facts, reference),
            *_network(facts),
            *_machine(facts),
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problems = [
            _stop(
                f"its answers are not those of hetero_hvd: {type(error).__name__}: {error}",
                "nothing is known of it",
                "see what runs there in the place of Python",
            )
        ]
    return NodeReport(
        facts=facts, problems=tuple(sorted(problems, key=lambda one: not one.stops_training))
    )


def _stop(what: str, consequence: str, remedy: str) -> Problem:
    return Problem(what=what, consequence=consequence, remedy=remedy, stops_training=True)


def _install(node: NodeConfig) -> str:
    """How a node gets the driver's software."""
    if node.kind != SSH:
        return "correct its python in nodes.yaml, or leave it out"
    install = f"hetero-hvd install {node.name}, with the same -f"
    if node.python is None:
        return install
    return f"install it into {node.python}; or leave python out in nodes.yaml, then {install}"


def _software(facts: NodeFacts, reference: Reference) -> Iterator[Problem]:
    node, seen = facts.node, facts.seen
    own = (node.python,) if node.is_local and node.python else interpreters(node)
    if seen["interpreter"] not in own:
        what = f"{node.python} is not there" if node.python else "hetero_hvd is not installed there"
        yield _stop(what, "no worker can start", _install(node))
        return
    mismatches = mismatches_of(facts, reference)
    for mismatch in mismatches:
        is_missing = not mismatch.found
        yield Problem(
            what=f"{mismatch.what} is {mismatch.found or 'missing'}, "
            f"the driver's {mismatch.expected or 'missing'}",
            consequence="no worker can start" if is_missing else mismatch.consequence,
            remedy=_install(node),
            stops_training=is_missing or mismatch.is_fatal,
        )
    if not mismatches and seen["digest"] != reference.digest:
        yield _stop(
            "hetero_hvd has the driver's version, and other files",
            "its workers may not understand the driver",
            _install(node),
        )
    for told in seen.get("diagnosis", {}).get("problems", ()):
        if not any(words in told["what"] for words in _NOT_FOR_NODES):
            needs_setup = "scripts/setup" in told["remedy"]
            yield Problem(
                what=told["what"],
                consequence=told["consequence"],
                remedy=_install(node) if needs_setup else told["remedy"],
                stops_training=told["stops_training"],
            )


def mismatches_of(facts: NodeFacts, reference: Reference) -> tuple[Mismatch, ...]:
    """Where a node has other versions than the driver."""
    this, driver = WorkerId(facts.node.name, 0), WorkerId("driver", 0)
    own = _comparable(facts.seen.get("versions", {}))
    return compare({this: own}, {driver: _comparable(reference.versions)})


def _comparable(versions: Mapping[str, str | None]) -> dict[str, str]:
    """With the minor version of Python only: packages fit all of its patch releases."""
    found = {name: version or "" for name, version in versions.items()}
    return found | {"python": ".".join(found.get("python", "").split(".")[:2])}


def _files(facts: NodeFacts, reference: Reference) -> Iterator[Problem]:
    node, seen = facts.node, facts.seen
    directory = node.directory or reference.directory
    if not seen["directory"]:
        yield _no_folder(node, directory, seen.get("directory_error"))
    elif reference.script is not None and seen["script"] != reference.script[1]:
        path, _ = reference.script
        words = f"{path} in {directory}"
        yield _stop(
            f"{words} is another one than here" if seen["script"] else f"there is no {words}",
            "its workers would run something else" if seen["script"] else "no worker can start",
            f"copy it there: {_copy(node, path, directory)}",
        )
    for path in seen["missing"]:
        yield Problem(
            what=f"{path} is not there",
            consequence="the script gets it as an argument",
            remedy="copy it there, if the script reads it",
        )


def _no_folder(node: NodeConfig, directory: str, why_not: str | None) -> Problem:
    """What is said of a folder in which no worker can start."""
    if why_not in (None, os.strerror(errno.ENOENT)):
        what, remedy = f"there is no folder {directory}", "make it there"
    else:
        what = f"the folder {directory} cannot be looked at: {why_not}"
        remedy = f"let {node.user or 'the user who logs in'} in there"
    return _stop(what, "no worker can start", f"{remedy}, or say directory in nodes.yaml")


def _copy(node: NodeConfig, path: str, directory: str) -> str:
    """A command that copies a file to a node."""
    place = str(PurePosixPath(directory, path))
    if node.is_local:
        return shlex.join(["cp", path, place])
    port = ["-P", str(node.port)] if node.port else []
    user = f"{node.user}@" if node.user else ""
    return shlex.join(["scp", *port, path, f"{user}{node.address}:{place}"])


def _network(facts: NodeFacts) -> Iterator[Problem]:
    for peer, why_not in facts.peers.items():
        if why_not:
            yield _stop(
                f"it cannot reach {peer}: {why_not}",
                "workers on both wait for each other for ever",
                "open all TCP ports between the nodes, and from them to the driver; name the right "
                "interface in nodes.yaml where a machine has several",
            )
    offset = facts.clock_offset_seconds
    if abs(offset) > CLOCK_SECONDS + facts.clock_error_seconds:
        yield Problem(
            what=f"its clock is {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}",
            consequence="logs cannot be compared, certificates may not be valid",
            remedy="let it keep time: apt-get install systemd-timesyncd",
        )


def _machine(facts: NodeFacts) -> Iterator[Problem]:
    if facts.seen["disk_bytes"] is not None and facts.seen["disk_bytes"] < DISK_BYTES:
        yield Problem(
            what=f"only {facts.seen['disk_bytes'] / 1e6:.0f} MB are free where it works",
            consequence="what the script writes may not fit",
            remedy="make room there",
        )
    if facts.seen["shm_bytes"] is not None and facts.seen["shm_bytes"] < SHM_BYTES:
        yield Problem(
            what=f"only {facts.seen['shm_bytes'] / 1e6:.0f} MB are free in /dev/shm",
            consequence="processes of a DataLoader may fail",
            remedy="make it larger (containers: --shm-size=1g)",
        )
