"""`hetero-hvd nodes hardware`: what this machine, or each node, is made of, and who uses it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_hvd.cli.lines import add_json, show
from hetero_hvd.cli.nodes_to_ask import add_timeout, check_timeout, none_to_ask
from hetero_hvd.cli.settings import add_nodes_file, load
from hetero_hvd.cli.table import print_table
from hetero_hvd.config.paths import some_path
from hetero_hvd.core.view.live_nodes import users_in_words
from hetero_hvd.errors import UserError
from hetero_hvd.messages import NodeSampled, event_to_json

if TYPE_CHECKING:
    from hetero_hvd.remote.hardware_survey import NodeHardware

HELP = """\
Without -f: what this machine is made of, and what of it training may use. With -f: the same of all
nodes of a file, over ssh and at the same time. Both: who uses which GPU now.

Exit code 0; 1 if a node cannot be asked.
"""
GIB = 2**30
_RATE_SECONDS = 0.2
"""Between two looks at this machine: rates are means over it."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_json(command)
    command.add_argument(
        "--path",
        type=some_path,
        default=None,
        metavar="DIR",
        help="where the data set lies (default: the current folder); without -f",
    )
    command.add_argument(
        "--towards",
        metavar="ADDRESS",
        help="the driver's machine, whose direction decides the network interface; without -f",
    )
    add_timeout(command)
    add_nodes_file(command, is_optional=True)


def act(arguments: argparse.Namespace) -> int:
    """Print the inventory; 1 if a node cannot be asked."""
    check_timeout(arguments)
    if arguments.nodes_files:
        return _act_on_nodes(arguments)
    from hetero_hvd.probes.machine.inventory import take_inventory  # noqa: PLC0415 - asks the GPU driver
    from hetero_hvd.probes.sampling.node_sampler import NodeSampler  # noqa: PLC0415 - as above

    inventory = take_inventory(arguments.path or Path(), towards=arguments.towards)
    sampler = NodeSampler()
    sampler.take()
    time.sleep(_RATE_SECONDS)
    sample = sampler.take()
    if arguments.json:
        print(json.dumps(inventory.as_dict() | {"sample": _plain(sample)}, indent=2))
        return 0
    print(inventory.text())
    for line in users_in_words(sample):
        show(line)
    return 0


def _act_on_nodes(arguments: argparse.Namespace) -> int:
    from hetero_hvd.remote.hardware_survey import can_be_asked, survey_nodes  # noqa: PLC0415 - not for all

    if arguments.path is not None or arguments.towards is not None:
        raise UserError("--path and --towards are for this machine: leave them out, or -f")
    cluster = load(arguments).current
    asked = [node for node in cluster.nodes if can_be_asked(node)]
    left_out = [node for node in cluster.nodes if not can_be_asked(node)]
    if not asked:
        raise none_to_ask(cluster, "hardware")
    found = survey_nodes(asked, timeout_seconds=arguments.timeout)
    has_failed = any(node.failure for node in found)
    if arguments.json:
        nodes = [_as_dict(node) for node in found]
        names = [node.name for node in left_out]
        print(json.dumps({"nodes": nodes, "left_out": names}, indent=2))
        return int(has_failed)
    headings = ("node", "processor", "memory", "network", "GPUs", "now")
    print_table(headings, [tuple(map("\n".join, _cells(node))) for node in found])
    for node in found:
        for line in users_in_words(node.sample):
            show(f"{node.node} {line}")
    for node in found:
        if node.failure:
            show(f"{node.node}: cannot be asked: {node.failure}. To do: {node.remedy}")
    for other in left_out:
        show(f"{other.name}: left out, it has launcher {other.launcher}: its agent tells /hardware")
    return int(has_failed)


def _as_dict(node: NodeHardware) -> dict[str, Any]:
    if node.failure:
        return {"node": node.node, "failure": node.failure, "remedy": node.remedy}
    return {"node": node.node, **node.inventory, "sample": _plain(node.sample)}


def _plain(sample: NodeSampled) -> dict[str, Any]:
    """Ready for JSON; null for what is not told."""
    plain: dict[str, Any] = json.loads(event_to_json(sample))
    return plain


def _cells(node: NodeHardware) -> Iterator[list[str]]:
    yield [node.node]
    if node.failure:
        yield from [["not asked"], [], [], [], []]
        return
    seen, sample = node.inventory, node.sample
    processor = seen["processor"]
    yield [processor["model"], f"{processor['num_cpus']} CPUs"]
    yield [f"{seen['memory']['total_bytes'] / GIB:.1f} GiB"]
    yield [_interface(one) for one in seen["interfaces"] if one["is_up"] and one["name"] != "lo"]
    yield [
        f"{gpu['index']} {gpu['name']} {(gpu['memory_bytes'] or 0) / GIB:.0f} GiB"
        for gpu in seen["gpus"]["gpus"]
    ] or [seen["gpus"]["problem"] or "none"]
    yield [
        f"CPU {sample.cpu_use_ratio:.0%}, {sample.memory_used_bytes / GIB:.1f} GiB",
        *(f"GPU {gpu.index} {gpu.use_ratio:.0%}" for gpu in sample.devices),
    ]


def _interface(seen: dict[str, Any]) -> str:
    speed = seen["speed_bits_per_second"]
    return f"{seen['name']} {speed / 1e9:g} Gbit/s" if speed else str(seen["name"])
