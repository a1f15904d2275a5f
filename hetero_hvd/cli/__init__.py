"""The command line: the only place that prints and decides the exit code.

Each command is a module with SUMMARY, `add_arguments` and `act`, and if it has more to say, HELP
and USAGE; TAKES_SCRIPT, if a script of the user's may follow after `--`.

Exit codes: 0 done, 1 it did not work, 2 the input is wrong (one line per problem, no traceback),
75 not now, as it says in one line, 130 interrupted; `run` passes on the training's.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from hetero_hvd import __version__
from hetero_hvd.cli.lines import show
from hetero_hvd.cli.mistakes import about_command, about_words
from hetero_hvd.errors import UserError
from hetero_hvd.exit_codes import exit_of_user_error

COMMANDS = {
    "run": "train.run",
    "submit": "queue.submit",
    "queue": "queue.queue",
    "drain": "train.drain",
    "trace": "train.trace",
    "top": "watch.top",
    "report": "watch.report",
    "runs": "watch.runs",
    "compare": "watch.compare",
    "cost": "watch.cost",
    "advise": "watch.advise",
    "export": "watch.export",
    "nodes": "cluster.nodes",
    "install": "cluster.install",
    "config": "cluster.config",
    "horovodrun-hosts": "cluster.hosts",
    "doctor": "measure.doctor",
    "bench-comm": "measure.bench_comm",
    "hardware": "measure.hardware",
    "benchmark": "measure.benchmark",
    "key": "cluster.key",
    "agent": "cluster.agent",
    "hub": "record.hub",
    "record": "record.record",
    "certificates": "cluster.certificates",
    "simulate": "measure.simulate",
    "stack": "cluster.stack",
    "deploy": "deploy.deploy",
}
"""Name to its module in a room of this package; only the one that is called is imported."""

ALIASES = {"discover": "horovodrun-hosts"}
"""Old names of commands: `discover` is too near to the option `--discover`."""


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
    _open_closed_streams()
    _take_any_text()
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        return int(arguments.act(arguments))
    except UserError as error:
        for line in error.lines:
            show(f"hetero-hvd: {line}", file=sys.stderr)
        return exit_of_user_error(may_pass=error.may_pass)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `hetero-hvd config | head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _open_closed_streams() -> None:
    """Give what is closed (`hetero-hvd ... 1>&-`) a place in nowhere.

    Else the next file or socket that is opened would get the number of a standard stream, and all
    that some library or child process prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("w" if number else "r")  # noqa: SIM115 - for good
            setattr(sys, name, stream)


def _take_any_text() -> None:
    """Print in escapes what the locale has no letters for, such as the name of a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the words up to the first `--`; what follows is the user's, whatever it looks like."""
    words = [ALIASES.get(word, word) for word in words[:1]] + list(words[1:])
    split = words.index("--") if "--" in words else len(words)
    if split and not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UserError(about_command(words[0], tuple(COMMANDS)))
    names: Iterable[str] = words[:1] if split and words[0] in COMMANDS else COMMANDS
    arguments, unknown = _parser(names).parse_known_args(words[:split])
    if unknown:
        known, takes_script = arguments.known, arguments.takes_script
        raise UserError(
            about_words(unknown, command=words[0], known=known, takes_script=takes_script)
        )
    arguments.command = tuple(words[split + 1 :])
    if arguments.command and not arguments.takes_script:
        able = [repr(name) for name in COMMANDS if _takes_script(module_of(name))]
        raise UserError(f"only {', '.join(able[:-1])} and {able[-1]} take a command after --")
    return arguments


def module_of(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"{__name__}.{COMMANDS[name]}")


def _takes_script(module: ModuleType) -> bool:
    return getattr(module, "TAKES_SCRIPT", False)


def _parser(names: Iterable[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hetero-hvd",
        allow_abbrev=False,
        description="Train one PyTorch model on machines of unequal speed, with Elastic Horovod.",
    )
    parser.add_argument("--version", action="version", version=f"hetero-hvd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        module = module_of(name)
        summary = module.SUMMARY
        command = commands.add_parser(
            name,
            help=summary,
            description=getattr(module, "HELP", summary[0].upper() + summary[1:] + "."),
            usage=getattr(module, "USAGE", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        known = [word for action in command._actions for word in action.option_strings]  # noqa: SLF001 - argparse does not tell otherwise
        takes_script = _takes_script(module)
        command.set_defaults(act=module.act, known=known, takes_script=takes_script)
    return parser
