"""What a launcher has to do, and which one a node has.

The launcher that nodes.yaml calls NAME is `LAUNCHER` of the module NAME beside this one, and has an
entry in `hetero_hvd.config.launchers`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from hetero_hvd.config import NodeConfig


class Launcher(Protocol):
    """Runs the supervisor of a worker on a node, as a process of the driver's machine.

    That process passes input and output of the supervisor through, ends with its exit code, and
    when it is killed the supervisor's input ends. What the worker should run, and its secrets, go
    to that input: a command line is there for all to see.

    Attributes:
        unreachable_codes: Exit codes that say something of the way to the node, nothing of what
            runs there.
        says_goodbye: Whether the exit code is that which the supervisor tells at its end, as
            `--step` asks it to: the process has exit codes of its own.
    """

    unreachable_codes: frozenset[int]
    says_goodbye: bool

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:
        """The argument vector of that process; never a string for a local shell.

        Args:
            node: Where.
            arguments: Of the supervisor.
            job: Whose worker it is, in words, for who has several jobs to serve; may be empty.

        Raises:
            UserError: A path in the node's settings cannot be understood.
        """


def launcher_of(node: NodeConfig) -> Launcher:
    """What starts the workers of a node."""
    launcher: Launcher = import_module(f"{__package__}.{node.launcher}").LAUNCHER
    return launcher


def supervisor_words(node: NodeConfig, arguments: Sequence[str]) -> list[str]:
    """The argument vector of the supervisor, for the node itself."""
    return [python_of(node), "-m", "hetero_hvd.supervisor", *arguments]


def python_of(node: NodeConfig) -> str:
    """The interpreter on the node: that of nodes.yaml, else the driver's own."""
    return node.python or sys.executable
