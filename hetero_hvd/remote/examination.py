"""All nodes looked at in parallel, each by a program of its own, and by each other."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.config.launchers import SSH
from hetero_hvd.driver.network.endpoints import LOOPBACK, address_towards, resolve
from hetero_hvd.driver.workers.launchers.ssh import interpreters
from hetero_hvd.errors import JobError, NodeError, UserError
from hetero_hvd.remote.node_program import NodeProgram
from hetero_hvd.remote.programs.examination_program import GREETING_SECONDS, TokenListener

NUM_CLOCK_READINGS = 3
"""The one with the shortest way there and back counts."""


@dataclass(kw_only=True)
class NodeFacts:
    """What was found out about a node; what could not be is left as it is here.

    Attributes:
        node: Which.
        failure: Why there is no more.
        login_seconds: Until its program answered.
        clock_offset_seconds: How far its clock is ahead of this machine's.
        clock_error_seconds: By how much that may be wrong.
        address: Where the others reach it.
        peers: Name of each other node, and `driver`, to why it cannot be reached from here; empty
            if it can.
        seen: What it said of itself, see `examination_program.look`.
    """

    node: NodeConfig
    failure: NodeError | None = None
    login_seconds: float = 0.0
    clock_offset_seconds: float = 0.0
    clock_error_seconds: float = 0.0
    address: str = ""
    peers: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)


class Examination:
    """Looks at the nodes of a cluster.

    Args:
        cluster: The nodes; those that an agent starts are left out.
        script: Path of the script from each node's directory; None if there is none.
        paths: What its arguments name.
        timeout_seconds: For each answer of a node.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        *,
        script: str | None,
        paths: Sequence[str],
        timeout_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._script = script
        self._paths = list(paths)
        self._timeout_seconds = timeout_seconds
        self._secret = {"token": secrets.token_hex(16), "answer": secrets.token_hex(16)}
        self._programs: dict[str, NodeProgram] = {}
        self._ports: dict[str, tuple[str, int]] = {}
        self._driver: dict[str, TokenListener] = {}

    def run(self) -> list[NodeFacts]:
        """Look at all nodes; one that does not answer costs its time once.

        Raises:
            UserError: `job.driver_address` is none of this machine.
        """
        found = [
            NodeFacts(node=node)
            for node in self._cluster.nodes
            if node.is_local or node.kind == SSH
        ]
        addresses = self._addresses()
        with ExitStack() as stack:
            for address in set(addresses.values()):
                self._driver[address] = self._listener(address)
                stack.callback(self._driver[address].close)

            def visit(facts: NodeFacts) -> None:
                address = addresses.get(facts.node.name)
                self._visit(
                    facts, stack, (address, self._driver[address].port) if address else None
                )

            self._on_all(visit, found)
            self._on_all(self._reach_others, found)
        return found

    def _addresses(self) -> dict[str, str]:
        """Node to the driver's address for it, as far as there is a way."""
        fixed = self._cluster.job.driver_address
        if fixed:
            return {node.name: resolve(fixed) for node in self._cluster.nodes}
        found = {}
        for node in self._cluster.nodes:
            if not node.is_local:
                with suppress(JobError):  # ssh says why
                    found[node.name] = address_towards(node)
        for_local = next(iter(found.values()), LOOPBACK)
        return found | {node.name: for_local for node in self._cluster.nodes if node.is_local}

    def _listener(self, address: str) -> TokenListener:
        try:
            return TokenListener(address, **self._secret)
        except OSError as error:
            raise UserError(
                f"job.driver_address: this machine cannot listen on {address} ({error.strerror}); "
                "it must be an address of this machine"
            ) from error

    def _on_all(self, act: Callable[[NodeFacts], None], found: list[NodeFacts]) -> None:
        """Act on all nodes at once that have not failed so far."""

        def guarded(facts: NodeFacts) -> None:
            try:
                if facts.failure is None:
                    act(facts)
            except NodeError as error:
                facts.failure = error
            except UserError as error:
                facts.failure = NodeError(str(error), "correct that in nodes.yaml")

        with ThreadPoolExecutor(max(len(found), 1)) as pool:
            list(pool.map(guarded, found))

    def _visit(self, facts: NodeFacts, stack: ExitStack, driver: tuple[str, int] | None) -> None:
        """Log in, read the clock, look around."""
        node = facts.node
        begin_seconds = time.monotonic()
        own = (node.python or interpreters(node)[-1],) if node.is_local else interpreters(node)
        program = NodeProgram(
            node, "examination_program", interpreters=(*own, "python3"), fits="import json"
        )
        stack.enter_context(program)
        self._programs[node.name] = program
        for reading in range(NUM_CLOCK_READINGS):
            asked_at = time.time()
            began = time.monotonic()
            told = program.ask("clock", seconds=self._timeout_seconds)
            took_seconds = time.monotonic() - began
            if not reading:
                facts.login_seconds = time.monotonic() - begin_seconds
            elif reading == 1 or took_seconds / 2 < facts.clock_error_seconds:
                facts.clock_error_seconds = took_seconds / 2
                facts.clock_offset_seconds = told - (asked_at + took_seconds / 2)
        order = {
            "directory": node.directory or str(Path.cwd()),
            "script": self._script,
            "paths": self._paths,
            "environment": node.env,
            "limit_seconds": self._timeout_seconds,
        }
        looking_seconds = self._timeout_seconds + GREETING_SECONDS
        facts.seen = program.ask("look", order, seconds=looking_seconds)
        if driver is not None:
            asked = {"driver": driver, "interface": node.interface, **self._secret}
            told = program.ask("listen", asked, seconds=self._timeout_seconds)
            facts.address = told["address"]
            facts.peers["driver"] = told["driver"]
            self._ports[node.name] = (told["address"], told["port"])

    def _reach_others(self, facts: NodeFacts) -> None:
        """Try to reach all other nodes that listen."""
        name = facts.node.name
        others = {other: port for other, port in self._ports.items() if other != name}
        if name in self._ports and others:
            order = {"peers": others, **self._secret}
            told = self._programs[name].ask("reach", order, seconds=self._timeout_seconds)
            facts.peers |= {other: told.get(other, "it does not say so") for other in others}
