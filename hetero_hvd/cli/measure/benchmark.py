"""`hetero-hvd benchmark`: how fast each node is, and how fast it trains this model."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import sys
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from hetero_hvd.cli.lines import add_json, show
from hetero_hvd.cli.nodes_to_ask import check_range
from hetero_hvd.cli.settings import add_nodes_file, load, nodes_files
from hetero_hvd.cli.train.run import check_script
from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.core.benchmark import verdict
from hetero_hvd.errors import UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.probes.training_packages import require_training

if TYPE_CHECKING:
    from hetero_hvd.driver.node_benchmark import Measured
    from hetero_hvd.measure.network import Network

USAGE = "%(prog)s [options] [[--] train.py [arguments]]"
TAKES_SCRIPT = True
HELP = """\
Measure all slots of nodes.yaml at once (without the file: this machine): matrix product and copy,
and the training script, if one is named, with batches of several sizes. The script runs alone on
each slot, with its own model, data and loss, and ends by itself; it needs no change beyond
`Trainer`.
Then, where there are two slots or more, the network between them, over Horovod.

What was measured is kept on each node, and the curves of the model beside the output folder, so
that the next `hetero-hvd run` of the same model starts balanced.
"""
DEFAULT_SECONDS, MAX_SECONDS = 30.0, 86400.0
NETWORK_RATIO = 0.3
"""Of the time is for the network, its own job's start included."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_nodes_file(command)
    command.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        help=f"about how long it may take, the start included (default: {DEFAULT_SECONDS:g})",
    )
    command.add_argument("--no-network", action="store_true", help="leave the network out")
    command.add_argument("--fresh", action="store_true", help="measure again what is known")
    add_json(command)


def act(arguments: argparse.Namespace) -> int:
    """Measure and print; 1 if some slot did not tell."""
    check_range("--seconds", arguments.seconds, 0.1, MAX_SECONDS)
    cluster = _cluster(arguments)
    if arguments.command:
        check_script(arguments.command, cluster.nodes)
    if any(node.is_local and node.python is None for node in cluster.nodes):
        require_training("hetero-hvd benchmark")
    from hetero_hvd.driver import node_benchmark as benchmark  # noqa: PLC0415 - imports asyncio's subprocesses

    def say(worker: WorkerId, text: str) -> None:
        show(f"[{worker}] {text}", file=sys.stderr)

    has_network = not arguments.no_network and _may_have_links(arguments, cluster)
    found = asyncio.run(
        benchmark.benchmark(
            cluster,
            arguments.command,
            seconds=arguments.seconds * (1 - NETWORK_RATIO if has_network else 1),
            is_fresh=arguments.fresh,
            say=say,
        )
    )
    network = _network(arguments, cluster, len(found)) if has_network and len(found) > 1 else None
    path, curves = benchmark.keep(cluster, found)
    if arguments.json:
        slots = [_plain(one, is_kept=one.worker in curves) for one in found]
        print(json.dumps({"slots": slots, "network": network and network.as_plain()}, indent=2))
    else:
        for line in (*_lines(found, curves), *(network.in_words() if network else ())):
            show(line)
        if curves:
            names = ", ".join(map(str, curves))
            print(f"{path}: the next run of this model starts with the curves of {names}")
    is_missing = has_network and len(found) > 1 and network is None
    return 1 if is_missing or not all(_is_complete(one, arguments.command) for one in found) else 0


def _are_there(arguments: argparse.Namespace) -> bool:
    return all(path.exists() for path in nodes_files(arguments))


def _may_have_links(arguments: argparse.Namespace, cluster: ClusterConfig) -> bool:
    """Whether there is a file to start a job with, and more than one slot as far as it says."""
    slots = [node.declared_slots or 2 for node in cluster.nodes]
    return _are_there(arguments) and sum(slots) > 1


def _network(
    arguments: argparse.Namespace, cluster: ClusterConfig, num_workers: int
) -> Network | None:
    """What Horovod gets from the network; None, and why, if it could not be measured."""
    from hetero_hvd.measure.network import measure  # noqa: PLC0415 - not for all

    print("the network, by a job of its own", file=sys.stderr, flush=True)
    try:
        require_training("the network's part of hetero-hvd benchmark")
        return measure(
            nodes_files(arguments),
            dict(os.environ),
            cluster=cluster,
            num_workers=num_workers,
            seconds=arguments.seconds * NETWORK_RATIO / 3,  # the rest: to start and to end it
            is_fresh=arguments.fresh,
        )
    except UserError as error:
        show(f"the network was not measured: {error}", file=sys.stderr)
        return None


def _cluster(arguments: argparse.Namespace) -> ClusterConfig:
    """The nodes of the file; without one, this machine."""
    if arguments.nodes_files or _are_there(arguments):
        cluster = load(arguments).current
        if not cluster.job.discover:
            return cluster
        from hetero_hvd.driver.nodes.node_discovery import scan  # noqa: PLC0415 - for this alone

        return asyncio.run(scan(cluster))[0]
    name = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node()).strip("-.") or "localhost"
    return ClusterConfig(job=JobConfig(), nodes=(NodeConfig(name=name),))


def _is_complete(one: Measured, command: tuple[str, ...]) -> bool:
    return one.device is not None and (one.model is not None or not command)


def _plain(one: Measured, *, is_kept: bool) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.json.decode(msgspec.json.encode([one.device, one.model]))
    device, model = facts
    return {
        "worker": str(one.worker),
        "exit_code": one.exit_code,
        "device": device,
        "model": model,
        "is_kept": is_kept,
    }


def _lines(found: list[Measured], kept: Container[WorkerId]) -> Iterator[str]:
    for one in found:
        device = one.device.device if one.device else "did not tell"
        yield f"{one.worker}  {device}{_earlier(one.device)}"
        for speed in one.device.speeds if one.device else ():
            unit = "GB/s" if speed.what == "copy" else "GFLOP/s"
            what = f"{speed.what} {speed.dtype}"
            number = f"{speed.per_second / 1e9:10.1f} {unit:<8}"
            yield f"  {what:<26}{number} {_worth(speed.spread_ratio)}"
        if one.model is not None:
            yield from _model_lines(one, is_kept=one.worker in kept)
        elif one.exit_code != 0:
            yield from (f"  {line}" for line in one.tail)


def _model_lines(one: Measured, *, is_kept: bool) -> Iterator[str]:
    model = one.model
    assert model is not None  # noqa: S101 - for mypy
    name = model.model.partition(" ")[0]
    yield f"  {name}, {model.global_batch_size} samples in a global batch{_earlier(model)}"
    for size in model.sizes:
        speed = size.local_batch_size / size.busy_seconds
        what = f"{size.local_batch_size} samples"
        number = f"{1e3 * size.busy_seconds:10.2f} ms {speed:12.0f} samples/s"
        yield f"  {what:<26}{number} {_worth(size.spread_ratio)}"
    a, c = 1e3 * model.overhead_seconds, 1e3 * model.seconds_per_sample
    kept = "" if is_kept else "; too few valid sizes: it is not kept"
    yield f"  {'curve':<26}{a:.4g} ms + {c:.4g} ms for each sample{kept}"
    if model.read_samples_per_second is not None:
        read = f"{model.read_samples_per_second:10.0f} samples/s"
        yield f"  {'dataset read':<26}{read} in one process"


def _worth(spread_ratio: float | None) -> str:
    words = verdict(spread_ratio)
    return words if words != "noisy" else f"noisy: the middle half differs by {spread_ratio:.0%}"


def _earlier(result: Any) -> str:  # noqa: ANN401 - either of two records
    return ", measured earlier" if result is not None and result.is_cached else ""
