"""`hetero-hvd submit`: give a hub's queue a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.queue import submit_to
from hetero_hvd.cli.queue.submit_to import Numbers, given_settings
from hetero_hvd.cli.record.times import duration, positive
from hetero_hvd.cli.settings import add_settings
from hetero_hvd.config.effective_settings import scalar_text
from hetero_hvd.config.job import OF_THE_QUEUE
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.config.variables import ARRAY_VARIABLE
from hetero_hvd.core.digits import whole_number
from hetero_hvd.core.queue.jobs import MAX_ARRAY, PRIORITIES
from hetero_hvd.errors import AllWrong, UserError

if TYPE_CHECKING:
    from hetero_hvd.discovery.submission.queue_link import SubmittedTrial

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
    command.add_argument(
        "--trials",
        type=path_text,
        metavar="PATH",
        help="what `hetero-hvd trial` has measured of the script, by which the job is placed: its "
        "placements.json or the folder of that (default: runs, if one is there)",
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


def _num_devices(arguments: argparse.Namespace, wrong: AllWrong) -> tuple[int, int | None]:
    """Fewest and most devices; None: as many as the fewest."""
    devices, most = arguments.devices, arguments.most
    if devices is not None and (most is not None or arguments.fewest != "1"):
        wrong.take(UserError("--devices: takes the place of --min and --max"))
    flag, text = ("--min", arguments.fewest) if devices is None else ("--devices", devices)
    fewest = wrong.of(lambda: positive(flag, text), 1)
    most = None if most is None else wrong.of(lambda: positive("--max", most), fewest)
    if most is not None and most < fewest and devices is None:
        wrong.take(UserError(f"--max: found {most}, must be at least {fewest}, as --min"))
    return fewest, most


def act(arguments: argparse.Namespace) -> int:
    """Submit, and print the number of the job."""
    from hetero_hvd.discovery.submission.queue_client import order  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.submission.queue_link import QueueOrder  # noqa: PLC0415 - likewise

    numbers, trials = _checked(arguments)
    if arguments.to is not None:
        submit_to.hand_over(arguments, numbers)
        return 0
    number, last = _submitted(arguments, numbers, trials)
    show(f"job {number}" if last <= number else f"jobs {number}-{last}")
    why = order(QueueOrder(name="why", job=number), socket_path=arguments.socket)
    if not why.startswith(f"{number} runs"):
        show(why, sys.stderr)
    return 0


def _checked(arguments: argparse.Namespace) -> tuple[Numbers, list[SubmittedTrial]]:
    """All options that are numbers, times or ranges, and what was measured of the script.

    Raises:
        UserError: They, or anything else that can be seen from here, are wrong; says all of it.
    """
    from hetero_hvd.discovery.submission.job_settings import (  # noqa: PLC0415 - not for all
        check_settings,
        check_together,
    )
    from hetero_hvd.discovery.submission.queue_client import check_command, queue_socket  # noqa: PLC0415

    wrong = AllWrong()
    if not arguments.command:
        wrong.take(UserError("no command: hetero-hvd submit [options] train.py [arguments]"))
    with wrong.part():
        submit_to.check_flags(arguments)
    numbers = _numbers(arguments, wrong)
    if arguments.priority not in PRIORITIES:
        allowed = " or ".join(PRIORITIES)
        wrong.take(UserError(f"--priority: found {arguments.priority!r}, must be {allowed}"))
    trials: list[SubmittedTrial] = []
    if arguments.command:
        with wrong.part():
            check_command(arguments.command, is_command=arguments.devices is not None)
            trials = _trials(arguments)
    if arguments.to is not None:
        with wrong.part():
            submit_to.check(arguments, numbers)
    else:
        array, limit = wrong.of(lambda: _array(arguments.array), (list[int](), 0))
        shape = _Shape(
            min_devices=numbers.fewest,
            is_command=arguments.devices is not None,
            needs=arguments.needs,
            idle_limit_seconds=numbers.idle_limit_seconds,
            array=array,
            array_limit=limit,
        )
        settings = given_settings(arguments)
        if arguments.devices is None:  # a program has none
            with wrong.part():
                check_settings({name: scalar_text(value) for name, value in settings.items()})
        with wrong.part():
            check_together(shape, settings)
        with wrong.part():
            queue_socket(arguments.socket)
    wrong.check()
    return numbers, trials


def _trials(arguments: argparse.Namespace) -> list[SubmittedTrial]:
    """What trials have measured of the script; a line is printed for each that does not count.

    Raises:
        UserError: What was asked for is not there, or of no use.
    """
    from hetero_hvd.cli.queue.tried import trials_of  # noqa: PLC0415 - not for all

    if arguments.to is not None:
        return []  # another queue knows none, which is told with its other options
    if arguments.devices is not None:
        if arguments.trials is not None:
            raise UserError("--trials: is of trainings; leave it or --devices out")
        return []
    trials, lines = trials_of(arguments.command, arguments.trials)
    for line in lines:
        show(line, sys.stderr)
    return trials


class _Shape(NamedTuple):
    """See `SubmittedShape`."""

    min_devices: int
    is_command: bool
    needs: list[str]
    idle_limit_seconds: float | None
    array: list[int]
    array_limit: int


def _numbers(arguments: argparse.Namespace, wrong: AllWrong) -> Numbers:
    """All options that are numbers, times or ranges; one that is wrong is taken for not said."""
    fewest, most = _num_devices(arguments, wrong)
    retries, after = arguments.retries, list[int]()
    for text in arguments.after:
        with wrong.part():
            after += numbers_of("--after", text)
    seconds: dict[str, float | None] = {}
    for name in ("deadline", "time_limit", "idle_limit"):
        text, flag = getattr(arguments, name), f"--{name.replace('_', '-')}"
        seconds[f"{name}_seconds"] = None
        if text is not None:
            with wrong.part():
                seconds[f"{name}_seconds"] = duration(flag, text)
    return Numbers(
        fewest=fewest,
        most=most,
        retries=None if retries is None else wrong.of(lambda: _number("--retries", retries), None),
        after=after,
        **seconds,
    )


def _submitted(
    arguments: argparse.Namespace, numbers: Numbers, trials: Sequence[SubmittedTrial]
) -> tuple[int, int]:
    """The number of the job; of an array the first and the last."""
    from hetero_hvd.discovery.submission.queue_client import submit  # noqa: PLC0415 - not for all

    array, limit = _array(arguments.array)
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
        trials=trials,
        settings=given_settings(arguments),
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
