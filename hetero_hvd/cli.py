"""The command line: the only place that prints and decides the exit code.

Exit codes: 0 done, 1 it did not work, 2 the input is wrong (one line per problem, no traceback),
130 interrupted; `run` passes on the training's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from hetero_hvd.bench import simulate
from hetero_hvd.config import JOB_SETTINGS, ClusterConfig, NodeConfig, NodesFile, listing
from hetero_hvd.errors import JobError, UserError

_RUN_USAGE = "%(prog)s [options] -- train.py [arguments]"
_RUN_HELP = """\
Start one worker on each slot of nodes.yaml, train, and balance the shares.

After `--` comes the training script with its arguments, or any other command. A first word that
ends in .py is run by each node's own interpreter (nodes[].python), anything else as it stands.
"""
_DISCOVER_HELP = """\
Print the hosts of nodes.yaml as Horovod's elastic launcher wants them, `host:slots` on each line:

  horovodrun -np 3 --min-np 2 --network-interface lo \\
    --host-discovery-script "hetero-hvd discover -f nodes.yaml" python train.py

To Horovod a host is its name: nodes with launcher 'local' are one host `localhost` with the sum
of their slots, ssh nodes with the same address are one host too. It knows neither users, ports,
keys, interpreters, environments nor emulation: give those of ssh to horovodrun, or put them into
ssh_config. With a single host horovodrun needs --network-interface (`lo` if it is localhost).
"""


class _Parser(argparse.ArgumentParser):
    """Reports misuse as every other wrong input is reported."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Words after the program's name; default: those of this process.

    Returns:
        The exit code.
    """
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        return int(arguments.act(arguments))
    except UserError as error:
        for line in str(error).splitlines():
            print(f"hetero-hvd: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `hetero-hvd config | head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the words up to the first `--`; what follows is the user's, whatever it looks like."""
    split = words.index("--") if "--" in words else len(words)
    arguments = _parser().parse_args(words[:split])
    arguments.command = tuple(words[split + 1 :])
    if arguments.command and arguments.act is not _run:
        raise UserError("only 'run' takes a command after --")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hetero-hvd",
        allow_abbrev=False,
        description="Train one PyTorch model on machines of unequal speed, with Elastic Horovod.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, act, summary, text in (
        ("run", _run, "train on all nodes", _RUN_HELP),
        ("drain", _drain, "let a node of a running job go, without losing a step", None),
        ("compare", _compare, "tell the first step at which two reproducible runs differ", None),
        ("nodes", _nodes, "list the nodes", None),
        ("config", _config, "list every setting and where its value came from", None),
        ("discover", _discover, "list the hosts for horovodrun", _DISCOVER_HELP),
        ("doctor", _doctor, "say what this machine can train with, and what not", None),
        ("simulate", _simulate, "compare balancing policies on a cluster that is described", None),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=text or summary[0].upper() + summary[1:] + ".",
            usage=_RUN_USAGE if name == "run" else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(act=act)
        _add_arguments(command, name)
    return parser


def _add_arguments(command: argparse.ArgumentParser, name: str) -> None:
    """What one command takes."""
    if name in {"nodes", "doctor"}:
        command.add_argument("--json", action="store_true", help="print JSON")
    if name == "simulate":
        simulate.add_arguments(command)
    elif name == "compare":
        command.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="output folder")
    elif name == "drain":
        command.add_argument("target", metavar="NODE[:SLOT]", help="who should leave")
        command.add_argument(
            "--output",
            type=Path,
            metavar="PATH",
            help="folder of the running job (default: the newest in runs/)",
        )
    elif name != "doctor":
        command.add_argument(
            "-f",
            "--nodes-file",
            type=Path,
            default=Path("nodes.yaml"),
            metavar="FILE",
            help="the nodes and settings of the job (default: nodes.yaml)",
        )
    if name == "run":
        command.add_argument(
            "--resume",
            type=Path,
            metavar="PATH",
            help="go on from the newest checkpoint in this output folder of an earlier run",
        )
    if name in {"run", "config"}:
        _add_settings(command)


def _add_settings(command: argparse.ArgumentParser) -> None:
    """A flag for each setting of the job, as text: checked together with the file."""
    group = command.add_argument_group("settings of the job, see docs/nodes-yaml.md")
    for setting in JOB_SETTINGS:
        text = f"{setting.doc} (default: {setting.default_text or setting.default})"
        text = text.replace("%", "%%")
        if isinstance(setting.default, bool):
            group.add_argument(
                setting.flag, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            metavar = setting.name.rpartition("_")[2].upper()
            group.add_argument(setting.flag, default=None, metavar=metavar, help=text)


def _load(arguments: argparse.Namespace) -> NodesFile:
    flags = {setting.name: getattr(arguments, setting.name, None) for setting in JOB_SETTINGS}
    return NodesFile(arguments.nodes_file, os.environ, flags)


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command
    if not command:
        raise UserError("no command: hetero-hvd run [options] -- train.py [arguments]")
    nodes_file = _load(arguments)
    _check_script(command, nodes_file.current)
    if find_spec("horovod") is None:
        raise JobError("Horovod is not installed here: run scripts/setup, see hetero-hvd doctor")
    from hetero_hvd.driver.job import run_job  # noqa: PLC0415 - imports Horovod

    return run_job(nodes_file, command, resume=arguments.resume)


def _drain(arguments: argparse.Namespace) -> int:
    from hetero_hvd.driver import control  # noqa: PLC0415 - only this command needs it

    print(control.drain(arguments.output or control.newest_run(), arguments.target))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from hetero_hvd.driver.compare import compare  # noqa: PLC0415 - only this command needs it

    found = compare(*arguments.runs)
    print("\n".join(found.lines))
    return 0 if found.are_equal else 1


def _check_script(command: tuple[str, ...], cluster: ClusterConfig) -> None:
    """Find a mistyped script before any worker is started.

    Raises:
        JobError: A node on this machine would not find it. Other machines may have other files.
    """
    is_python = Path(command[0]).name.startswith("python")
    script = command[1] if is_python and len(command) > 1 else command[0]
    if not script.endswith(".py"):
        return
    for node in cluster.nodes:
        folder = Path(node.directory or "").expanduser()
        if node.launcher == "local" and not (folder / script).is_file():
            raise JobError(
                f"{script}: no such file in {folder.absolute()}, where {node.name} runs it"
            )


def _nodes(arguments: argparse.Namespace) -> int:
    nodes = _load(arguments).current.nodes
    if arguments.json:
        print(json.dumps([_record(node) for node in nodes], indent=2))
        return 0
    from rich.console import Console  # noqa: PLC0415 - slow to import, needed here only
    from rich.table import Table  # noqa: PLC0415

    table = Table()
    for heading in ("node", "launcher", "address", "slots", "devices", "limits and hints"):
        table.add_column(heading, overflow="fold")
    for node in nodes:
        table.add_row(*_row(node))
    Console().print(table)
    return 0


def _record(node: NodeConfig) -> dict[str, object]:
    """A node as JSON, without the values of its environment: some are secrets."""
    return asdict(node) | {"slots": node.declared_slots, "env": sorted(node.env)}


def _row(node: NodeConfig) -> tuple[str, ...]:
    user = f"{node.user}@" if node.user else ""
    port = f" port {node.port}" if node.port else ""
    names = ("relative_speed", "memory_limit_bytes", "max_local_batch_size")
    notes = {name: getattr(node, name) for name in names}
    notes |= asdict(node.emulate) if node.emulate else {}
    return (
        node.name,
        node.launcher,
        f"{user}{node.address}{port}",
        str(node.declared_slots or "its GPUs, else 1"),
        "GPU per slot" if node.devices is None else ", ".join(map(str, node.devices)) or "CPU only",
        ("emulated: " if node.emulate else "")
        + ", ".join(f"{name} {value:g}" for name, value in notes.items() if value),
    )


def _config(arguments: argparse.Namespace) -> int:
    rows = list(listing(_load(arguments).current))
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for at, value, source in rows:
        print(f"{at:{wide[0]}}  {value:{wide[1]}}  {source}")
    return 0


def _discover(arguments: argparse.Namespace) -> int:
    slots: Counter[str] = Counter()
    for index, node in enumerate(_load(arguments).current.nodes):
        host = "localhost" if node.launcher == "local" else node.address
        if ":" in host:
            raise JobError(
                f"nodes[{index}].address: found {host!r}, but Horovod's format HOST:SLOTS has no "
                "place for an IPv6 address; give a name"
            )
        slots[host] += _num_slots(node, index)
    for host, number in slots.items():
        print(f"{host}:{number}")
    return 0


def _num_slots(node: NodeConfig, index: int) -> int:
    if node.declared_slots is not None:
        return node.declared_slots
    if node.launcher == "ssh":
        raise JobError(f"nodes[{index}].slots: Horovod's discovery needs a number, none is given")
    from hetero_hvd.probes.hardware import gpus  # noqa: PLC0415 - asks the GPU driver

    return node.resolved_slots(len(gpus()))


def _doctor(arguments: argparse.Namespace) -> int:
    from hetero_hvd.probes.doctor import diagnose  # noqa: PLC0415 - only this command needs it

    diagnosis = diagnose()
    print(json.dumps(diagnosis.as_dict(), indent=2) if arguments.json else diagnosis.text())
    return 0 if diagnosis.can_train else 1


def _simulate(arguments: argparse.Namespace) -> int:
    print(simulate.run(arguments))
    return 0
