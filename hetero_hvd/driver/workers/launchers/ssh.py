"""`launcher: ssh`: the supervisor is started by the node's sshd, without a password."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.paths import own_path
from hetero_hvd.driver.workers.launchers.registry import Launcher, supervisor_words
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION

OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
"""Nobody is there to be asked, and a connection that is dead has to end."""


class SshLauncher:
    """See `Launcher`."""

    unreachable_codes = frozenset({EXIT_NO_CONNECTION})
    busy_codes = frozenset[int]()

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:  # noqa: ARG002
        """See `Launcher`; the words after `--` are for a shell, on the node."""
        options = [*OPTIONS, *(f"{name}={value}" for name, value in node.ssh_options.items())]
        vector = ["ssh", "-T", *(part for option in options for part in ("-o", option))]
        if node.port is not None:
            vector += ["-p", str(node.port)]
        if node.identity_file is not None:
            vector += ["-i", str(own_path(node.identity_file, f"{node.name}: identity_file"))]
        target = f"{node.user}@{node.address}" if node.user else node.address
        return [*vector, target, "--", f"exec {shlex.join(supervisor_words(node, arguments))}"]


LAUNCHER: Launcher = SshLauncher()
