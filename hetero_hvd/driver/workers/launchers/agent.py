"""`launcher: agent`: the node's own agent starts the supervisor, for who has the cluster key."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.driver.workers.launchers.registry import Launcher
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION, EXIT_NO_PLACE


class AgentLauncher:
    """See `Launcher`; `hetero_hvd.agent.client` is for an agent what ssh is for sshd."""

    unreachable_codes = frozenset({EXIT_NO_CONNECTION, EXIT_NO_PLACE})
    says_goodbye = False

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:
        """See `Launcher`; the agent tells other drivers of the job."""
        where = [node.address, str(node.port or AGENT_PORT), node.identity_file or ""]
        tls = ["--tls", node.tls_file, node.name] if node.tls_file else []
        words = [f"--job={job}"] if job else []
        return [sys.executable, "-m", "hetero_hvd.agent.client", *where, *tls, *words, *arguments]


LAUNCHER: Launcher = AgentLauncher()
