"""The launchers by name: which settings of a node each of them uses, and where its nodes are.

What a launcher does is in the module of its name in `driver/workers/launchers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_hvd.config.value_types import is_loopback

AGENT_PORT = 9388
"""Where an agent listens if nothing else is said."""

CONNECTION_KEYS = (
    "user",
    "port",
    "identity_file",
    "ssh_options",
    "srun_options",
    "python",
    "tls_file",
)
"""Settings of a node that say how it is reached; none of them is used by every launcher."""


@dataclass(frozen=True, kw_only=True)
class LauncherKind:
    """One value of a node's setting `launcher`.

    Attributes:
        name: The value.
        keys: The settings that it uses, of `CONNECTION_KEYS`; others would have no effect.
        is_local: Whether its nodes are the driver's own machine.
        uses_cluster_key: Whether a node without `identity_file` and `tls_file` has those of the
            job: its cluster key, without which it cannot be reached, and its TLS file.
        announces_itself: Whether there may be such a node without a word in nodes.yaml.
        counts_slots: Whether who starts its workers sees that no two jobs have one CPU slot.
    """

    name: str
    keys: frozenset[str]
    is_local: bool = False
    uses_cluster_key: bool = False
    announces_itself: bool = False
    counts_slots: bool = False

    def why_not(self, key: str, address: str) -> str:
        """Why a node at this address must not have a setting, and what to do; empty if it may."""
        if key in self.keys:
            return ""
        if self.is_local:
            others = [kind.name for kind in KINDS.values() if key in kind.keys]
            return f"address {address} is started locally; set 'launcher: {others[0]}' or remove it"
        return f"has no effect with launcher {self.name}; remove it"


LOCAL = LauncherKind(name="local", keys=frozenset({"python"}), is_local=True)
SSH = LauncherKind(
    name="ssh", keys=frozenset({"user", "port", "identity_file", "ssh_options", "python"})
)
AGENT = LauncherKind(
    name="agent",
    keys=frozenset({"port", "identity_file", "tls_file"}),
    uses_cluster_key=True,
    announces_itself=True,
    counts_slots=True,
)
SRUN = LauncherKind(name="srun", keys=frozenset({"srun_options", "python"}), counts_slots=True)

KINDS = {kind.name: kind for kind in (LOCAL, SSH, AGENT, SRUN)}
"""All that there are, as the documentation lists them."""


def kind_at(address: str) -> LauncherKind:
    """What starts the workers of a node of which nothing but its address is said."""
    return LOCAL if is_loopback(address) else SSH
