"""`launcher: local`: the supervisor is a process of the driver's own machine."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.registry import Launcher, supervisor_words


class LocalLauncher:
    """See `Launcher`; there is no way that could fail."""

    unreachable_codes = frozenset[int]()
    says_goodbye = False

    def command(self, node: NodeConfig, arguments: Sequence[str], job: str) -> list[str]:  # noqa: ARG002
        """See `Launcher`."""
        return supervisor_words(node, arguments)


LAUNCHER: Launcher = LocalLauncher()
