"""`hetero-hvd nodes`: list the nodes."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from hetero_hvd.cli.lines import add_json, show
from hetero_hvd.cli.settings import add_nodes_file, load
from hetero_hvd.cli.table import print_table
from hetero_hvd.config import NodeConfig
from hetero_hvd.discovery.advert import Advert
from hetero_hvd.discovery.words import in_words


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_json(command)
    command.add_argument(
        "--discover",
        action="store_true",
        default=None,  # as the file says whether it may list none
        help="also those that announce themselves; takes 3 s",
    )
    add_nodes_file(command)


def act(arguments: argparse.Namespace) -> int:
    """Print a table."""
    cluster = load(arguments).current
    adverts: dict[str, Advert] = {}
    if arguments.discover:
        from hetero_hvd.driver.nodes.node_discovery import scan  # noqa: PLC0415 - for this alone

        cluster, adverts = asyncio.run(scan(cluster))
    nodes = cluster.nodes
    if arguments.json:
        print(json.dumps([_record(node, adverts.get(node.name)) for node in nodes], indent=2))
        return 0
    if not nodes:
        others = ", and none announces itself", "; --discover looks for those beside it"
        found = others[not arguments.discover]
        show(f"no nodes in {cluster.where}{found}")
        return 0
    headings = ("node", "launcher", "address", "slots", "devices", "limits and hints")
    print_table(headings, [_row(node, adverts.get(node.name)) for node in nodes])
    return 0


def _record(node: NodeConfig, advert: Advert | None) -> dict[str, object]:
    """A node as JSON, without the values of its environment: some are secrets."""
    record = asdict(node) | {"slots": node.declared_slots, "env": sorted(node.env)}
    if advert is not None:
        told = ("summary", "version", "devices", "figures", "machine")
        record["announced"] = {name: getattr(advert, name) for name in told}
    return record


def _row(node: NodeConfig, advert: Advert | None) -> tuple[str, ...]:
    user = f"{node.user}@" if node.user else ""
    port = f" port {node.port}" if node.port else ""
    names = ("relative_speed", "memory_limit_bytes", "max_local_batch_size")
    notes = {name: getattr(node, name) for name in names}
    notes |= asdict(node.emulate) if node.emulate else {}
    text = ", ".join(f"{name} {value:g}" for name, value in notes.items() if value)
    return (
        node.name,
        node.launcher,
        f"{user}{node.address}{port}",
        str(node.declared_slots or "its GPUs, else 1"),
        "GPU per slot" if node.devices is None else ", ".join(map(str, node.devices)) or "CPU only",
        in_words(advert) if advert else f"{'emulated: ' if node.emulate else ''}{text}",
    )
