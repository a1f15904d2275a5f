"""`hetero-hvd agent`: offer this machine to the cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_hvd import __version__
from hetero_hvd.cli.cluster import agent_job
from hetero_hvd.cli.own_address import own_address
from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.config.value_types import NAME, WEBHOOK
from hetero_hvd.config.variables import refuse_unknown
from hetero_hvd.core.digits import whole_number
from hetero_hvd.core.redaction import redacted
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.agent.hub_sender import HubTarget
    from hetero_hvd.agent.interruptions import MetadataService
    from hetero_hvd.discovery.unicast import AnnounceTarget

SPOOL = Path("spool")
MIN_SPOOL_BYTES, MAX_SPOOL_BYTES = 2**16, 2**40
MAX_IDLE_SECONDS = 30 * 24 * 3600
CLOUDS = ("aws", "azure", "gcp")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "--key-file", type=some_path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument("--name", default=None, help="of the node (default: the host's name)")
    command.add_argument(
        "--slots",
        default=None,
        help="workers that it starts; 0: it only tells of the node (default: one per GPU, or 1)",
    )
    command.add_argument("--address", default=None, help="listen here only (default: everywhere)")
    _add_drivers(command)
    command.add_argument(
        "--token-file",
        type=path_text,
        default=None,
        help="mode 0600; who shows its token may read /metrics and /hardware (default: nobody)",
    )
    command.add_argument(
        "--tls-file",
        type=some_path,
        default=None,
        help="made by hetero-hvd key certificates for this node: drivers are then known by theirs "
        "(default: by the cluster key)",
    )
    command.add_argument(
        "--cloud",
        choices=CLOUDS,
        default=None,
        help="ask its metadata service whether it takes this machine away (spot, preemptible), and "
        "then leave in order (default: nobody is asked)",
    )
    command.add_argument(
        "--metadata-url", default=None, help="of that service, where it is not at its usual place"
    )
    command.add_argument("--port", default=str(AGENT_PORT), help=f"default: {AGENT_PORT}; 0 = any")
    agent_job.add_arguments(command)


def _add_drivers(command: argparse.ArgumentParser) -> None:
    """Whom it tells of itself, and for how long."""
    command.add_argument(
        "--announce-to",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="also announce to the hub or the driver at this address, where multicast ends at a "
        "router: what `hetero-hvd hub --listen PORT` or `run` was given there; may be given again",
    )
    command.add_argument(
        "--driver-file",
        type=some_path,
        metavar="FILE",
        help="also announce to the driver at the addresses in this file, HOST:PORT in each line; "
        "it is read again and again, and need not be there yet",
    )
    command.add_argument(
        "--hub",
        metavar="HOST:PORT",
        help="stream samples of this node to the hub there; auto: the one that announces itself "
        "with this key (default: to none)",
    )
    command.add_argument(
        "--spool",
        type=some_path,
        metavar="DIR",
        help="where samples wait that the hub does not have yet (default: spool)",
    )
    command.add_argument(
        "--spool-bytes",
        metavar="BYTES",
        help="room for them; the oldest are dropped and counted beyond it (default: 256 MiB)",
    )
    command.add_argument(
        "--until-idle",
        metavar="SECONDS",
        help="end when no driver has had a worker here for so long (default: never)",
    )


def act(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from hetero_hvd.agent.service import AgentOptions, serve_node  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.advert import MAX_SLOTS  # noqa: PLC0415 - not for all
    from hetero_hvd.security.cluster_key import read_key  # noqa: PLC0415 - not for all
    from hetero_hvd.security.tls import read_bundle, server_context  # noqa: PLC0415 - not for all
    from hetero_hvd.security.token import token_file  # noqa: PLC0415 - not for all

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("zeroconf").setLevel(logging.ERROR)  # has a traceback for each cable pulled
    refuse_unknown(os.environ)
    tls_file: Path | None = arguments.tls_file
    job = _job(arguments)
    own_name = platform.node() if job is None else job.name
    name = own_name if arguments.name is None else arguments.name
    if not NAME.admits(name):
        whose = "--name" if name is arguments.name else "the host's name; give one with --name"
        raise UserError(f"{whose}: found {name!r}, must be {NAME.allowed}")
    options = AgentOptions(
        key=read_key(arguments.key_file),
        name=name,
        slots=None
        if arguments.slots is None
        else _number("--slots", arguments.slots, 0, MAX_SLOTS),
        address=None if arguments.address is None else own_address(arguments.address),
        port=_number("--port", arguments.port, 0, 65535),
        token=token_file(arguments.token_file, "--token-file"),
        tls=None if tls_file is None else server_context(read_bundle(tls_file), str(tls_file)),
        version=__version__,
        announce_to=_targets(arguments.announce_to),
        driver_file=_driver_file(arguments.driver_file),
        cloud=_cloud(arguments.cloud, arguments.metadata_url),
        machine=None if job is None else job.machine,
        visible=_visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")),
        must_leave=None if job is None else job.must_leave,
        until_idle_seconds=_idle_seconds(arguments.until_idle),
        hub=_hub(arguments),
    )
    if options.cloud is None and arguments.metadata_url is not None:
        raise UserError("--metadata-url needs --cloud: say whose service it is")
    if asyncio.run(serve_node(options)) and job is not None:
        job.left()
    return 0


def _targets(texts: list[str]) -> tuple[AnnounceTarget, ...]:
    from hetero_hvd.discovery.unicast import (  # noqa: PLC0415 - not for all
        MAX_TARGETS,
        AnnounceTarget,
    )

    if len(texts) > MAX_TARGETS:
        raise UserError(f"--announce-to: given {len(texts)} times, may be at most {MAX_TARGETS}")
    return tuple(AnnounceTarget.read(text, "--announce-to") for text in texts)


def _driver_file(path: Path | None) -> Path | None:
    from hetero_hvd.agent.driver_file import check_driver_file  # noqa: PLC0415 - not for all

    if path is not None:
        check_driver_file(path)
    return path


def _hub(arguments: argparse.Namespace) -> HubTarget | None:
    from hetero_hvd.agent.hub_sender import HubTarget  # noqa: PLC0415 - not for all
    from hetero_hvd.agent.spool import DEFAULT_MAX_BYTES  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.unicast import GIVEN_TO_HUB, AnnounceTarget  # noqa: PLC0415

    if arguments.hub is None:
        for flag, value in (("--spool", arguments.spool), ("--spool-bytes", arguments.spool_bytes)):
            if value is not None:
                raise UserError(f"{flag} needs --hub: samples wait there for a hub")
        return None
    room = DEFAULT_MAX_BYTES
    if arguments.spool_bytes is not None:
        room = _number("--spool-bytes", arguments.spool_bytes, MIN_SPOOL_BYTES, MAX_SPOOL_BYTES)
    is_found = arguments.hub == "auto"
    address = None if is_found else AnnounceTarget.read(arguments.hub, "--hub", GIVEN_TO_HUB)
    return HubTarget(address, arguments.spool or SPOOL, room)


def _job(arguments: argparse.Namespace) -> agent_job.AgentJob | None:
    """The Slurm job that this agent is; None: it is none."""
    if arguments.slurm:
        return agent_job.AgentJob(arguments, os.environ)
    agent_job.check_flags(arguments)
    return None


def _visible_gpus(given: str | None) -> tuple[str, ...] | None:
    """What CUDA_VISIBLE_DEVICES names, as the supervisor of a worker reads it."""
    from hetero_hvd.probes.gpu.visible_names import visible_names  # noqa: PLC0415 - not for all

    return None if given is None else visible_names(given)


def _idle_seconds(text: str | None) -> float | None:
    if text is None:
        return None
    return float(_number("--until-idle", text, 1, MAX_IDLE_SECONDS))


def _cloud(name: str | None, url: str | None) -> MetadataService | None:
    if name is None:
        return None
    from hetero_hvd.agent.interruptions import PROVIDERS  # noqa: PLC0415 - not for all

    is_service = url is None or re.fullmatch(r"http://[A-Za-z0-9.:\[\]-]+/?", url)
    if url is not None and not (is_service and WEBHOOK.admits(url)):
        raise UserError(f"--metadata-url: found {redacted(url)!r}, must be http://HOST[:PORT]")
    return PROVIDERS[name](url)


def _number(flag: str, text: str, minimum: int, maximum: int) -> int:
    number = whole_number(text)
    if number is None or not minimum <= number <= maximum:
        raise UserError(f"{flag}: found {text!r}, must be an integer from {minimum} to {maximum}")
    return number
