"""`hetero-hvd horovodrun-hosts`: the hosts for horovodrun."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.settings import add_nodes_file, load
from hetero_hvd.config import NodeConfig
from hetero_hvd.errors import JobError

HELP = """\
Print the hosts of nodes.yaml as Horovod's elastic launcher wants them, `host:slots` on each line:

  horovodrun -np 2 --min-np 1 --network-interfaces lo \\
    --host-discovery-script "hetero-hvd horovodrun-hosts -f nodes.yaml" python train.py

To Horovod a host is its name: nodes with launcher 'local' are one host `localhost` with the sum
of their slots, ssh nodes with the same address are one host too. It knows neither users, ports,
keys, interpreters, environments nor emulation: give those of ssh to horovodrun, or put them into
ssh_config. -np is how many workers it waits for at the start. With a single host it waits for ever
unless --network-interfaces names one (`lo` if it is localhost).
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_nodes_file(command)


def act(arguments: argparse.Namespace) -> int:
    """Print `host:slots` lines."""
    slots: Counter[str] = Counter()
    cluster = load(arguments).current
    for index, node in enumerate(cluster.nodes):
        host = "localhost" if node.is_local else node.address
        if ":" in host:
            raise JobError(
                f"nodes[{index}].address: found {host!r}, but Horovod's format HOST:SLOTS has no "
                "place for an IPv6 address; give a name"
            )
        slots[host] += _num_slots(node, index)
    if not slots:
        show(f"no nodes in {cluster.where}", sys.stderr)
    for host, number in slots.items():
        print(f"{host}:{number}")
    return 0


def _num_slots(node: NodeConfig, index: int) -> int:
    if node.declared_slots is not None:
        return node.declared_slots
    if not node.is_local:
        raise JobError(f"nodes[{index}].slots: Horovod's discovery needs a number, none is given")
    from hetero_hvd.probes.machine.hardware import gpus  # noqa: PLC0415 - asks the GPU driver

    return node.resolved_slots(len(gpus()))
