"""`launcher: ssh`: the supervisor is started by the node's sshd, without a password."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.paths import own_path
from hetero_hvd.driver.workers.launchers.registry import Launcher, supervisor_words
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION, EXIT_NOT_STARTED

OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
"""Nobody is there to be asked, and a connection that is dead has to end."""

INSTALLED = ".local/share/hetero_hvd/venv"
"""The environment that `hetero-hvd install` makes on a node, in the home of who logs in."""

_FIRST_THAT_IS_THERE = (
    "name=$1; own=$2; shift 2; "
    f'for python in "$HOME/{INSTALLED}/bin/python" "$own"; do '
    '[ ! -x "$python" ] || exec "$python" -m hetero_hvd.supervisor "$@"; done; '
    'echo "$own is not there; to do: hetero-hvd install $name, or say python in nodes.yaml" >&2; '
    f"exit {EXIT_NOT_STARTED}"
)
"""For the node's shell: runs the supervisor where nodes.yaml names no interpreter."""


class SshLauncher:
    """See `Launcher`."""

    unreachable_codes = frozenset({EXIT_NO_CONNECTION})
    says_goodbye = False

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:  # noqa: ARG002
        """See `Launcher`."""
        if node.python is not None:
            return ssh_vector(node, supervisor_words(node, arguments))
        words = ["sh", "-c", _FIRST_THAT_IS_THERE, "sh", node.name, sys.executable, *arguments]
        return ssh_vector(node, words)


def interpreters(node: NodeConfig) -> tuple[str, ...]:
    """Where a node's interpreter may be, from the home of who logs in; the first that is there."""
    return (node.python,) if node.python else (f"{INSTALLED}/bin/python", sys.executable)


def ssh_vector(node: NodeConfig, words: Sequence[str]) -> list[str]:
    """The argument vector of a process that runs a program on a node; the only way to ssh.

    Args:
        node: Where.
        words: The program and its arguments; what follows `--` is for a shell, on the node.

    Raises:
        UserError: A path in the node's settings cannot be understood.
    """
    options = [*OPTIONS, *(f"{name}={value}" for name, value in node.ssh_options.items())]
    vector = ["ssh", "-T", *(part for option in options for part in ("-o", option))]
    if node.port is not None:
        vector += ["-p", str(node.port)]
    if node.identity_file is not None:
        vector += ["-i", str(own_path(node.identity_file, f"{node.name}: identity_file"))]
    target = f"{node.user}@{node.address}" if node.user else node.address
    return [*vector, target, "--", f"exec {shlex.join(words)}"]


LAUNCHER: Launcher = SshLauncher()
