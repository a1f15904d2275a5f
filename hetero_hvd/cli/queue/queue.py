"""`hetero-hvd queue`: who has which devices, and who waits for what."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.queue.submit import add_socket, numbers_of
from hetero_hvd.cli.record.times import positive
from hetero_hvd.cli.table import print_table
from hetero_hvd.core.printable import printable
from hetero_hvd.errors import TryAgainError, UserError

HELP = """\
Jobs that were given to the queue by hetero-hvd submit.

  (nothing)         all jobs and devices
  why JOB           what it does, or what it waits for and about how long, in a sentence
  logs [-f] JOB     what it has printed; -f: and prints, until it has ended
  cancel JOBS       end them: 3, 3-12 or 3,5
  hold JOBS         give back their devices, with a checkpoint, until they are released
  release JOBS      let them start again
  move JOBS         give them another --pool or --priority

Only who has submitted a job, and operators, may do the last five."""
USAGE = "hetero-hvd queue [ACTION JOB] [options]"
ACTIONS = ("list", "why", "logs", "cancel", "hold", "release", "move")
FOLLOW_SECONDS = 0.3
AWAY_SECONDS = 1.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "action", nargs="?", default="list", metavar="ACTION", help=", ".join(ACTIONS)
    )
    command.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="its number; but for why and logs also 3-12 or 3,5",
    )
    command.add_argument(
        "-f",
        "--follow",
        nargs="?",
        const="",
        metavar="JOB",  # argparse gives no later word to JOB above
        help="of logs: until it has ended",
    )
    command.add_argument("--pool", help="of move")
    command.add_argument("--priority", help="of move: high, normal or low")
    add_json(command, "; of the list alone")
    add_socket(command)


def act(arguments: argparse.Namespace) -> int:
    """Have it done, and print what came of it."""
    action = arguments.action
    arguments.job = arguments.job or arguments.follow or None
    if action not in ACTIONS:
        raise UserError(f"queue: found {action!r}, must be one of {', '.join(ACTIONS)}")
    if (action == "list") != (arguments.job is None):
        needed = "takes no JOB" if action == "list" else "needs the number of a JOB"
        raise UserError(f"queue {action}: {needed}")
    flags = (("follow", "logs"), ("json", "list"), ("pool", "move"), ("priority", "move"))
    for flag, of in flags:
        if getattr(arguments, flag) not in (None, False) and action != of:
            raise UserError(f"queue {action}: does not take --{flag}, which is of {of}")
    if action == "list":
        return _list(arguments)
    if action == "logs":
        return _logs(arguments, positive("JOB", arguments.job))
    if action == "why":
        show(_ordered(arguments, action, job=positive("JOB", arguments.job)))
        return 0
    more = _moved(arguments) if action == "move" else {}
    numbers = numbers_of("JOB", arguments.job)
    about = {"job": numbers[0]} if len(numbers) == 1 else {"jobs": numbers}
    said = _ordered(arguments, action, **about, **more)
    for line in said if isinstance(said, list) else [said]:
        show(line)
    return 0


def _moved(arguments: argparse.Namespace) -> dict[str, Any]:
    from hetero_hvd.core.queue.jobs import PRIORITIES  # noqa: PLC0415 - not for all

    pool, priority = arguments.pool, arguments.priority
    if pool is None and priority is None:
        raise UserError("queue move: needs --pool or --priority")
    if priority is not None and priority not in PRIORITIES:
        raise UserError(f"--priority: found {priority!r}, must be {' or '.join(PRIORITIES)}")
    return {"pool": pool or "", "priority": priority}


def _ordered(arguments: argparse.Namespace, name: str, **more: Any) -> Any:  # noqa: ANN401
    from hetero_hvd.discovery.submission.queue_client import order  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.submission.queue_link import QueueOrder  # noqa: PLC0415

    return order(QueueOrder(name=name, **more), socket_path=arguments.socket)


def _list(arguments: argparse.Namespace) -> int:
    found = _ordered(arguments, "list")
    if arguments.json:
        show_json(found)
        return 0
    rows = [
        [
            str(job["job"]), job["user"], job["pool"], job["priority"], printable(job["script"]),
            job["why"].removeprefix(f"{job['job']} "),
        ]
        for job in found["jobs"]
    ]  # fmt: skip
    if rows:
        headings = ["job", "user", "pool", "priority", "script", ""]
        print_table(headings, rows, ends_in_sentences=True)
    busy = sum(each["job"] is not None for each in found["devices"])
    jobs = "1 job" if len(rows) == 1 else f"{len(rows)} jobs"
    show(f"{jobs}; {busy} of {len(found['devices'])} devices are in use")
    return 0


def _logs(arguments: argparse.Namespace, job: int) -> int:
    begin = 0
    is_away: bool | None = None  # None: it has not answered yet
    while True:
        try:
            part = _ordered(arguments, "logs", job=job, begin=begin)
        except TryAgainError as error:
            if arguments.follow is None or is_away is None:
                raise
            if not is_away:  # the job goes on without a hub, and the next one tells the rest
                print(f"hetero-hvd: {error}; looking again", file=sys.stderr, flush=True)
            is_away = True
            time.sleep(AWAY_SECONDS)
            continue
        is_away = False
        for line in part["text"].splitlines(keepends=True):
            sys.stdout.write(
                printable(line.rstrip("\n"), keeps_colours=True) + "\n" * line.endswith("\n")
            )
        sys.stdout.flush()
        is_more = part["next"] > begin
        begin = part["next"]
        if not is_more and (part["is_over"] or arguments.follow is None):
            return 0
        if not is_more:
            time.sleep(FOLLOW_SECONDS)
