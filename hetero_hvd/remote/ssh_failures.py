"""What ssh says where it cannot reach a node, in words that tell what to do."""

from __future__ import annotations

import re

from hetero_hvd.config import NodeConfig
from hetero_hvd.errors import NodeError
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION, EXIT_NOT_STARTED, exit_in_words

NO_PYTHON = "no Python that fits"
"""Begins the line with which a node says that it has none."""

_NOT_OURS = "ValueError: invalid literal for int()"
"""With that a program ends whose first line, its length, did not come to it."""

_KINDS = (
    (
        "Could not resolve hostname",
        "the name {address} is not known here",
        "correct its address in nodes.yaml",
    ),
    (
        "Connection refused",
        "nothing listens at {address} port {port}",
        "start sshd there (apt-get install openssh-server), or correct its port in nodes.yaml",
    ),
    (
        "No route to host|Network is unreachable|timed out(?! waiting)",
        "no answer from {address} port {port}",
        "switch the machine on; check its address and the firewall",
    ),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that was known",
        "if the machine was set up anew: ssh-keygen -R {address}, then {log_in} once by hand",
    ),
    (
        "Host key verification failed",
        "its host key is not known here",
        "log in once by hand and confirm the key: {log_in}",
    ),
    (
        "Permission denied",
        "it does not let {user} in with a key",
        "give it one: {copy_id}; or name the key as identity_file in nodes.yaml",
    ),
    (
        "Bad configuration option|[Uu]nsupported option|keyword \\S+ extra arguments",
        "ssh does not know an option: {last}",
        "correct its ssh_options in nodes.yaml",
    ),
    (
        "not responding|closed by|[Bb]roken pipe|Connection reset",
        "the connection broke",
        "try again; the environment that was there before is as it was",
    ),
)
"""What is in the text of ssh, the fact, and what to do."""


def failure(node: NodeConfig, code: int, text: str) -> NodeError:
    """Why a program on a node came to nothing.

    Args:
        node: Where.
        code: Exit code of ssh, or of the program.
        text: What they wrote to their standard error.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else exit_in_words(code)
    if code == EXIT_NOT_STARTED:
        found = next((line for line in lines if line.startswith(NO_PYTHON)), last)
        return NodeError(found, "install one, or name its path as python in nodes.yaml")
    if last.startswith(_NOT_OURS):
        return NodeError(
            "its login shell reads what is meant for a program of ours",
            "correct its ~/.bashrc or the like: without a terminal it must leave the input alone",
        )
    if code == EXIT_NO_CONNECTION:
        for pattern, what, remedy in _KINDS:
            if re.search(pattern, text):
                words = _words(node) | {"last": last}
                return NodeError(what.format(**words), remedy.format(**words))
    return NodeError(last, f"see what this says: {_words(node)['log_in']} true")


def _words(node: NodeConfig) -> dict[str, str]:
    """The node's login as people type it."""
    target = f"{node.user}@{node.address}" if node.user else node.address
    port = f"-p {node.port} " if node.port else ""
    return {
        "address": node.address,
        "port": str(node.port or 22),
        "user": node.user or "you",
        "log_in": f"ssh {port}{target}",
        "copy_id": f"ssh-copy-id {port}{target}",
    }
