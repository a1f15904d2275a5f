"""`hetero-hvd record`: start, stop and cut recordings of the cluster's machines."""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.mistakes import did_you_mean
from hetero_hvd.cli.record.times import (
    duration,
    names_of,
    positive,
    shown_duration,
    time_of,
)
from hetero_hvd.config.paths import some_path
from hetero_hvd.errors import UserError, job_error

HELP = """\
Recordings of machines, kept by the hub of the cluster (hetero-hvd hub).

  start NAME [--every 500ms] [--nodes a,b]   begin one; any number overlap
             [--keep 7d] [--keep-bytes N]
  stop [NAME]                                end it, and write its folder
  status                                     sessions, nodes, what is missing
  cut NAME [--from TIME --to TIME]           write any part of what is stored
  recover [NAME] [--resume]                  list, write or go on with what a crash has left

TIME is a date and time such as 2026-11-25T14:00, or so long before now: 90s, 10m, 2h, 1d.
A recording is a folder as a run has: hetero-hvd report, export and runs read it."""
MAX_NAMES = 20
"""Of nodes in a line."""

USAGE = "hetero-hvd record ACTION [NAME] [options]"
ACTIONS = {
    "start": ("--every", "--nodes", "--keep", "--keep-bytes"),
    "stop": (),
    "status": (),
    "cut": ("--from", "--to", "--nodes"),
    "recover": ("--resume",),
}
"""Each action to those flags that not all of them take."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("action", metavar="ACTION", help=", ".join(ACTIONS))
    command.add_argument("name", nargs="?", metavar="NAME", help="of the recording")
    command.add_argument("--every", metavar="TIME", help="between two samples (default: 1s)")
    command.add_argument("--nodes", metavar="NAMES", help="default: all")
    command.add_argument(
        "--keep", metavar="TIME", help="of start: so long its samples stay (default: as the hub's)"
    )
    command.add_argument(
        "--keep-bytes", metavar="BYTES", help="of start: so many of them at most, the newest"
    )
    command.add_argument("--from", dest="begin", metavar="TIME", help="where a cut begins")
    command.add_argument("--to", dest="end", metavar="TIME", help="where it ends (default: now)")
    command.add_argument("--resume", action="store_true", help="of recover: go on with it")
    command.add_argument(
        "--hub",
        default="auto",
        metavar="HOST:PORT",
        help="default: the one that announces itself with this key",
    )
    command.add_argument(
        "--key-file", type=some_path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument(
        "--store",
        type=some_path,
        metavar="DIR",
        help="of recover and cut: read the folder of a hub that does not run",
    )
    add_json(command)


def act(arguments: argparse.Namespace) -> int:
    """Have it done, and print what came of it."""
    if arguments.action not in ACTIONS:
        there = ", ".join(ACTIONS)
        raise UserError(f"record: found {arguments.action!r}, must be one of {there}")
    _check(arguments)
    result = asyncio.run(_done(arguments))
    if arguments.json:
        show_json(result)
        return 0
    for line in _lines(arguments.action, result):
        show(line)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """See that nothing is said in vain: what an action does not take, or a name that is none.

    Raises:
        UserError: Something is.
    """
    from hetero_hvd.core.names import RECORDED_NAME  # noqa: PLC0415 - not for all

    action, name = arguments.action, arguments.name
    if action in ("start", "cut") and name is None:
        raise UserError(f"record {action}: needs a NAME")
    if action == "status" and name is not None:
        raise UserError(f"record status: takes no NAME, found {name!r}; it tells of all")
    if name is not None:
        RECORDED_NAME.check("session", name)
    given = {
        "--every": arguments.every, "--nodes": arguments.nodes, "--keep": arguments.keep,
        "--keep-bytes": arguments.keep_bytes, "--from": arguments.begin, "--to": arguments.end,
        "--resume": arguments.resume or None,
    }  # fmt: skip
    for flag, value in given.items():
        if value is not None and flag not in ACTIONS[action]:
            of = " and ".join(each for each, flags in ACTIONS.items() if flag in flags)
            raise UserError(f"record {action}: does not take {flag}, which is of {of}")
    if arguments.resume and name is None:
        raise UserError("record recover --resume: needs the NAME of what is to go on")


async def _done(arguments: argparse.Namespace) -> Any:  # noqa: ANN401 - of JSON's kinds
    asked = _asked(arguments)
    if arguments.store is not None:
        return await _done_here(arguments.store, arguments.action, asked)
    from hetero_hvd.discovery.hub_client import HubOrders  # noqa: PLC0415

    hub = HubOrders(arguments.key_file, arguments.hub, setting="--hub", max_frame_bytes=None)
    return await hub(arguments.action, asked)


async def _done_here(store: Path, action: str, asked: dict[str, Any]) -> Any:  # noqa: ANN401
    """By this process, in the folder of a hub that does not run."""
    from hetero_hvd.hub.commands import HubCommands  # noqa: PLC0415 - not for all
    from hetero_hvd.hub.fleet import Fleet  # noqa: PLC0415
    from hetero_hvd.hub.service import open_store  # noqa: PLC0415
    from hetero_hvd.hub.storage.index import FILE  # noqa: PLC0415

    if not (store / FILE).is_file():
        raise UserError(f"--store: {store} is no hub's folder ({FILE} is missing)")
    opened = open_store(store)
    try:
        done = await HubCommands(opened, Fleet(opened, time.monotonic)).act(action, asked)
    except OSError as error:
        raise job_error(f"{store}: {action}: {error.strerror}", error) from error
    finally:
        opened.close()
    if action == "status":
        for node in done["nodes"]:
            del node["is_healthy"], node["has_left"], node["is_doubled"]  # nobody listens
    return done


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    asked: dict[str, Any] = {"name": arguments.name, "resume": arguments.resume}
    if arguments.nodes is not None:
        asked["nodes"] = names_of("--nodes", arguments.nodes)
    if arguments.every is not None:
        asked["every_seconds"] = duration("--every", arguments.every)
    if arguments.keep is not None:
        asked["keep_seconds"] = duration("--keep", arguments.keep)
    if arguments.keep_bytes is not None:
        asked["keep_bytes"] = positive("--keep-bytes", arguments.keep_bytes)
    for name, flag, text in (("from", "--from", arguments.begin), ("to", "--to", arguments.end)):
        if text is not None:
            asked[name] = time_of(flag, text)
    return asked


def _lines(action: str, result: Any) -> list[str]:  # noqa: ANN401
    if action == "status" or "sessions" in result:
        found = [_session_line(session) for session in result["sessions"]]
        found += filter(None, (session.get("notice") for session in result["sessions"]))
        found += [_node_line(node) for node in result.get("nodes", ())]
        if announced := result.get("announced"):
            found.append(f"announce themselves to the hub: {', '.join(announced)}")
        found += [words.format(n) for key, words in _COUNTED.items() if (n := result.get(key))]
        found += [
            f"damaged {path}  what was whole in it is stored" for path in result.get("damaged", ())
        ]
        return found or ["no session, no node"]
    line = _session_line(result)
    if "frames" in result:
        line += f"  {result['frames']} samples, {result['missing']} missing"
    found = [line]
    if result.get("frames") == 0:
        found.append("  nothing is stored of that time and these nodes; see record status")
    unknown = result.get("unknown", ())
    if silent := [name for name in result.get("silent", ()) if name not in unknown]:
        later = f"; what waits there comes later: record cut {result['name']} then writes it anew"
        names = ", ".join(silent)
        found.append(f"  not heard now: {names}{later if 'frames' in result else ''}")
    found += [f"  {name}: {_never_heard_of(name, result['known'])}" for name in unknown]
    return found


def _never_heard_of(name: str, known: list[str]) -> str:
    """What to say of a node that the hub does not know."""
    there = ", ".join(known[:MAX_NAMES]) + ", ..." * (len(known) > MAX_NAMES) or "none"
    question = did_you_mean(name, known) or f"; there are {there}"
    return f"the hub has never heard of a node of that name{question}"


_COUNTED = {
    "duplicates": "{} samples came twice and are stored once",
    "from_the_future": "{} samples came with a time in the future and have that of their arrival",
    "damaged_files": "{} files were found damaged since the hub was started; its log says which",
}
"""What `status` tells beside sessions and nodes, where it is not 0."""


def _node_line(node: dict[str, Any]) -> str:
    """Whether a node is heard is known to a hub that runs."""
    state = {True: "  is heard", False: "  is not heard", None: ""}[node.get("is_healthy")]
    state = "  has said good-bye" if node.get("has_left") else state
    state = state if node["kind"] == "node" else ""  # a program sends when it likes
    name = f"{node['kind']} {node['node']}"
    doubled = "  two agents send by this name" if node.get("is_doubled") else ""
    return f"{name}{state}{doubled}  {node['samples']} samples, {node['missing']} missing"


def _session_line(session: dict[str, Any]) -> str:
    begin = datetime.fromtimestamp(session["from_unix_seconds"])  # noqa: DTZ006 - for people here
    until = session["until_unix_seconds"]
    length = "goes on" if until is None else f"{until - session['from_unix_seconds']:.0f} s"
    nodes = ",".join(session["nodes"]) or "all nodes"
    folder = f"  {session['folder']}" if session["folder"] else ""
    line = f"session {session['name']}  {begin:%Y-%m-%d %H:%M:%S}  {length}  {nodes}"
    return f"{line}{_terms(session) if until is None else ''}{folder}"


def _terms(session: dict[str, Any]) -> str:
    """How often it samples, and what limits it."""
    found = [f"every {shown_duration(session['every_seconds'])}"]
    if session["keep_seconds"] is not None:
        found.append(f"kept for {shown_duration(session['keep_seconds'])}")
    if session["keep_bytes"] is not None:
        found.append(f"at most {session['keep_bytes']} bytes")
    return f"  {', '.join(found)}"
