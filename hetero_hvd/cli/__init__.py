"""The command line: the only place that prints and decides the exit code.

Each command is a line in `commands.py` and a module; `parsing.py` reads the words.

Exit codes: 0 done, 1 it did not work, 2 the input is wrong (one line per problem, no traceback),
75 not now, as it says in one line, 130 interrupted; `run` passes on the training's.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.parsing import parse
from hetero_hvd.errors import UserError
from hetero_hvd.exit_codes import exit_of_user_error


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
        arguments = parse(sys.argv[1:] if argv is None else argv)
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
