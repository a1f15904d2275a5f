"""`hetero-hvd deploy WHERE DIR`: files with which others start agents and a driver."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.deploy import compose, kubernetes, slurm
from hetero_hvd.cli.lines import show
from hetero_hvd.config.paths import some_path

TAKES_SCRIPT = True
TARGETS = {"kubernetes": kubernetes, "slurm": slurm, "compose": compose}
"""Each has SUMMARY, `add_arguments`, and `write`, which gives the files and what to do next."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """A command of its own for each target."""
    targets = command.add_subparsers(metavar="WHERE", required=True, help=", ".join(TARGETS))
    for name, module in TARGETS.items():
        summary = module.SUMMARY
        target = targets.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            allow_abbrev=False,
        )
        target.add_argument("folder", type=some_path, metavar="DIR", help="where to write them")
        target.add_argument(
            "--force",
            action="store_true",
            help="replace files of the same names in DIR (default: it must be empty, or not there)",
        )
        module.add_arguments(target)
        known = [word for action in target._actions for word in action.option_strings]  # noqa: SLF001 - argparse does not tell otherwise
        target.set_defaults(write=module.write, known=known)


def act(arguments: argparse.Namespace) -> int:
    """Write the files, name them, and say what comes next."""
    files, next_steps = arguments.write(arguments)
    for line in (*map(str, files), "next:", *next_steps.splitlines()):
        show(line)
    return 0
