"""`hetero-hvd submit`: give a hub's queue a job."""

from __future__ import annotations

import argparse
import sys

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.record.times import duration, positive
from hetero_hvd.cli.settings import add_settings, flags_of
from hetero_hvd.config.job import OF_THE_QUEUE
from hetero_hvd.config.paths import some_path
from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import UserError

SUMMARY = "give the queue a job"
USAGE = "%(prog)s [options] -- train.py [arguments]"
TAKES_SCRIPT = True
HELP = """\
Give the queue of a hub (hetero-hvd hub --queue nodes.yaml) a job: what `hetero-hvd run` would
train, on as many devices as there are for it, between --min and --max, more or less at any time.

This folder's files, the arguments, the environment and the interpreter are taken as they are now;
what is edited later does not reach the job. Files that git ignores stay behind.
"""


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
        default="3",
        metavar="N",
        help="starts after failures that can heal, such as a lost node (default: 3)",
    )
    command.add_argument(
        "--deadline", metavar="TIME", help="from now on, such as 12h: when it should have ended"
    )
    command.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="JOB",
        help="start when that job has succeeded; may be given again",
    )
    add_socket(command)
    add_settings(command, OF_THE_QUEUE)


def add_socket(command: argparse.ArgumentParser) -> None:
    """Which queue."""
    command.add_argument(
        "--socket",
        type=some_path,
        metavar="PATH",
        help="of the queue (default: /run/hetero_hvd/queue.sock, else hub/queue.sock)",
    )


def act(arguments: argparse.Namespace) -> int:
    """Submit, and print the number of the job."""
    from hetero_hvd.core.queue.jobs import PRIORITIES  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.submission.queue_client import order, submit  # noqa: PLC0415
    from hetero_hvd.discovery.submission.queue_link import QueueOrder  # noqa: PLC0415

    if not arguments.command:
        raise UserError("no command: hetero-hvd submit [options] -- train.py [arguments]")
    fewest = positive("--min", arguments.fewest)
    most = None if arguments.most is None else positive("--max", arguments.most)
    if most is not None and most < fewest:
        raise UserError(f"--max: found {most}, must be at least {fewest}, as --min")
    if arguments.priority not in PRIORITIES:
        allowed = " or ".join(PRIORITIES)
        raise UserError(f"--priority: found {arguments.priority!r}, must be {allowed}")
    deadline = arguments.deadline
    given = {name: value for name, value in flags_of(arguments).items() if value is not None}
    number = submit(
        arguments.command,
        pool=arguments.pool,
        priority=arguments.priority,
        min_devices=fewest,
        max_devices=most,
        needs=arguments.needs,
        retries=_number("--retries", arguments.retries),
        deadline_seconds=None if deadline is None else duration("--deadline", deadline),
        after=[positive("--after", job) for job in arguments.after],
        settings=given,
        socket_path=arguments.socket,
    )
    show(f"job {number}")
    why = order(QueueOrder(name="why", job=number), socket_path=arguments.socket)
    if not why.startswith(f"{number} runs"):
        show(why, sys.stderr)
    return 0


def _number(flag: str, text: str) -> int:
    found = whole_number(text)
    if found is None:
        raise UserError(f"{flag}: found {text!r}, must be an integer of at least 0")
    return found
