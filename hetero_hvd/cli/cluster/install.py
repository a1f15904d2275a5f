"""`hetero-hvd install`: put hetero_hvd on nodes that have a Python and sshd."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.mistakes import did_you_mean
from hetero_hvd.cli.settings import add_nodes_file, load
from hetero_hvd.cli.table import print_table
from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.config.launchers import SSH
from hetero_hvd.errors import UserError

HELP = """\
Give nodes of nodes.yaml the same software as this machine has: hetero_hvd, torch, Horovod and what
they need, in the versions that are installed here. The files go over ssh; a node needs neither the
internet nor a compiler, but a Python of the same version as here (3.11 for 3.11) with venv.

The environment is made in ~/.local/share/hetero_hvd/venv, where `hetero-hvd run` finds it, or where
the node's `python` in nodes.yaml is. It takes the place of the earlier one when it is complete.
Exit code 0: all nodes have it; 1: one does not.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("nodes", nargs="*", metavar="NODE", help="some nodes (default: all)")
    add_nodes_file(command)
    command.add_argument(
        "--with",
        dest="more",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="also this, as installed here, and what it needs; can be given several times",
    )
    command.add_argument("--force", action="store_true", help="also where it is there already")


def act(arguments: argparse.Namespace) -> int:
    """Install; 1 if a node has not got it."""
    cluster = load(arguments).current
    nodes = _chosen(cluster, arguments.nodes)
    from hetero_hvd.remote.bundle import TRAINING, make_bundle  # noqa: PLC0415 - this command only
    from hetero_hvd.remote.installation import install_all  # noqa: PLC0415

    bundle = make_bundle((TRAINING, *arguments.more))
    found = install_all(
        nodes,
        bundle,
        lambda line: show(line, file=sys.stderr),
        is_forced=arguments.force,
    )
    rows = [
        (one.node, "good" if one.is_good else "FAILED", one.what, one.remedy, f"{one.seconds:.1f}")
        for one in found
    ]
    rows += [
        (node.name, "left out", _why_left_out(node), "", "")
        for node in cluster.nodes
        if node.kind != SSH and not arguments.nodes
    ]
    print_table(("node", "result", "what", "to do", "seconds"), rows)
    return 0 if all(one.is_good for one in found) else 1


def _chosen(cluster: ClusterConfig, names: Sequence[str]) -> list[NodeConfig]:
    """The nodes to install on.

    Raises:
        UserError: A name is none of theirs, or ssh is not the way to one.
    """
    known = {node.name: node for node in cluster.nodes}
    for name in names:
        if name not in known:
            question = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise UserError(f"{name} is no node of {cluster.where}{question}")
        if known[name].kind != SSH:
            raise UserError(f"{name}: {_why_left_out(known[name])}")
    nodes = [node for node in cluster.nodes if node.name in names or not names]
    chosen = [node for node in nodes if node.kind == SSH]
    if not chosen:
        raise UserError(f"{cluster.where} has no node with launcher {SSH.name}: nothing to install")
    return chosen


def _why_left_out(node: NodeConfig) -> str:
    if node.is_local:
        return "is this machine, which has its own environment"
    return f"has launcher {node.launcher}, and install needs {SSH.name}; pip can install there"
