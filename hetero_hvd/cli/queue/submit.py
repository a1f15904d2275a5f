"""`hetero-hvd submit`: give a hub's queue a job."""

from __future__ import annotations

import argparse
import sys

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.queue import submit_to
from hetero_hvd.cli.queue.submit_to import Numbers
from hetero_hvd.cli.record.times import duration, positive
from hetero_hvd.cli.settings import add_settings, flags_of
from hetero_hvd.config.job import OF_THE_QUEUE
from hetero_hvd.config.paths import some_path
from hetero_hvd.config.variables import ARRAY_VARIABLE
from hetero_hvd.core.digits import whole_number
from hetero_hvd.core.queue.jobs import MAX_ARRAY, PRIORITIES
from hetero_hvd.errors import UserError

USAGE = "%(prog)s [options] [--] train.py [arguments]"
TAKES_SCRIPT = True
HELP = """\
Give the queue of a hub (hetero-hvd hub --queue nodes.yaml) a job: what `hetero-hvd run` would
train, on as many devices as there are for it, between --min and --max, more or less at any time.

This folder's files, the arguments, the environment and the interpreter are taken as they are now;
what is edited later does not reach the job. Files that git ignores stay behind.
"""


RETRIES = 3


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("--pool", default="default", help="whose devices (default: default)")
    command.add_argument(
        "--priority", default="normal", help="high, normal or low (default: normal)"
    )
    command.add_argument(
        "--min", default="1", dest="fewest", metavar="N", help="fewest devices (default: 1)"
    )
    command.add_argument(
        "--max", dest="most", metavar="N", help="most devices (default: as many as --min)"
    )
    command.add_argument(
        "--needs",
        action="append",
        default=[],
        metavar="CONDITION",
        help="on each device, such as 'memory>=16GiB' or 'kind==v100'; may be given again",
    )
    command.add_argument(
        "--retries",
        metavar="N",
        help=f"starts after failures that can heal, such as a lost node (default: {RETRIES})",
    )
    command.add_argument(
        "--deadline", metavar="TIME", help="from now on, such as 12h: when it should have ended"
    )
    command.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="JOB",
        help="start when that job has succeeded, or jobs such as 3-12; may be given again",
    )
    _add_limits(command)
    add_socket(command)
    submit_to.add_arguments(command)
    add_settings(command, OF_THE_QUEUE)


def _add_limits(command: argparse.ArgumentParser) -> None:
    """What is said of programs, of time and of arrays."""
    command.add_argument(
        "--devices",
        metavar="N",
        help="what follows is any program, such as jupyter lab: it has N devices of one node until "
        "it ends, and is not shrunk",
    )
    command.add_argument(
        "--time-limit",
        metavar="TIME",
        help="end it after so long with devices (default: 8h for a program, never for a training)",
    )
    command.add_argument(
        "--idle-limit", metavar="TIME", help="end a program whose devices did nothing for so long"
    )
    command.add_argument(
        "--array",
        metavar="RANGE",
        help="a job for each index of 1-10, or at most 4 at a time: 1-10%%4; each finds its own in "
        f"{ARRAY_VARIABLE}",
    )


def add_socket(command: argparse.ArgumentParser) -> None:
    """Which queue."""
    command.add_argument(
        "--socket",
        type=some_path,
        metavar="PATH",
        help="of the queue (default: /run/hetero_hvd/queue.sock, else hub/queue.sock)",
    )


def _num_devices(arguments: argparse.Namespace) -> tuple[int, int | None]:
    """Fewest and most devices; None: as many as the fewest."""
    if arguments.devices is not None and (arguments.most is not None or arguments.fewest != "1"):
        raise UserError("--devices: takes the place of --min and --max")
    if arguments.devices is not None:
        fewest = positive("--devices", arguments.devices)
    else:
        fewest = positive("--min", arguments.fewest)
    most = None if arguments.most is None else positive("--max", arguments.most)
    if most is not None and most < fewest:
        raise UserError(f"--max: found {most}, must be at least {fewest}, as --min")
    return fewest, most


def act(arguments: argparse.Namespace) -> int:
    """Submit, and print the number of the job."""
    from hetero_hvd.discovery.submission.queue_client import order  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.submission.queue_link import QueueOrder  # noqa: PLC0415 - likewise

    if not arguments.command:
        raise UserError("no command: hetero-hvd submit [options] train.py [arguments]")
    submit_to.check_flags(arguments)
    numbers = _numbers(arguments)
    if arguments.priority not in PRIORITIES:
        allowed = " or ".join(PRIORITIES)
        raise UserError(f"--priority: found {arguments.priority!r}, must be {allowed}")
    if arguments.to is not None:
        submit_to.hand_over(arguments, numbers)
        return 0
    number, last = _submitted(arguments, numbers)
    show(f"job {number}" if last <= number else f"jobs {number}-{last}")
    why = order(QueueOrder(name="why", job=number), socket_path=arguments.socket)
    if not why.startswith(f"{number} runs"):
        show(why, sys.stderr)
    return 0


def _numbers(arguments: argparse.Namespace) -> Numbers:
    """All options that are numbers, times or ranges."""
    fewest, most = _num_devices(arguments)
    return Numbers(
        fewest=fewest,
        most=most,
        retries=None if arguments.retries is None else _number("--retries", arguments.retries),
        after=[job for text in arguments.after for job in numbers_of("--after", text)],
        **{
            f"{name}_seconds": text and duration(f"--{name.replace('_', '-')}", text)
            for name in ("deadline", "time_limit", "idle_limit")
            for text in [getattr(arguments, name)]
        },
    )


def _submitted(arguments: argparse.Namespace, numbers: Numbers) -> tuple[int, int]:
    """The number of the job; of an array the first and the last."""
    from hetero_hvd.discovery.submission.queue_client import submit  # noqa: PLC0415 - not for all

    array, limit = _array(arguments.array)
    given = {name: value for name, value in flags_of(arguments).items() if value is not None}
    number = submit(
        arguments.command,
        pool=arguments.pool,
        priority=arguments.priority,
        min_devices=numbers.fewest,
        max_devices=numbers.most,
        needs=arguments.needs,
        retries=RETRIES if numbers.retries is None else numbers.retries,
        after=numbers.after,
        is_command=arguments.devices is not None,
        array=array,
        array_limit=limit,
        deadline_seconds=numbers.deadline_seconds,
        time_limit_seconds=numbers.time_limit_seconds,
        idle_limit_seconds=numbers.idle_limit_seconds,
        settings=given,
        socket_path=arguments.socket,
    )
    return number, number + len(array) - 1


def _array(text: str | None) -> tuple[list[int], int]:
    """Indices, and how many of them at a time; 0: any number."""
    if text is None:
        return [], 0
    indices, mark, limit = text.partition("%")
    return numbers_of("--array", indices), positive("--array: behind %", limit) if mark else 0


def numbers_of(flag: str, text: str) -> list[int]:
    """All of a text such as 3, 3-12 or 1,4-6.

    Raises:
        UserError: It is none.
    """
    numbers: list[int] = []
    for part in text.split(","):
        ends = [found for end in part.split("-", 1) if (found := whole_number(end)) is not None]
        is_whole = len(ends) == part.count("-") + 1
        num_left = MAX_ARRAY - len(numbers)
        if not is_whole or not 0 <= ends[-1] - ends[0] < num_left:
            raise UserError(
                f"{flag}: found {text!r}, must be numbers such as 3, 3-12 or 1,4-6, at most "
                f"{MAX_ARRAY}"
            )
        numbers += range(ends[0], ends[-1] + 1)
    return numbers


def _number(flag: str, text: str) -> int:
    found = whole_number(text)
    if found is None:
        raise UserError(f"{flag}: found {text!r}, must be an integer of at least 0")
    return found
