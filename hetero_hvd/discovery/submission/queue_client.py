"""Orders to the queue of a hub on this machine, and what a job is made of when it is submitted."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.config.effective_settings import scalar_text
from hetero_hvd.discovery.submission.pinned_script import check_texts, pinned_command
from hetero_hvd.discovery.submission.queue_link import (
    MAX_LINE_BYTES,
    QueueAnswer,
    QueueOrder,
    SubmittedJob,
    SubmittedTrial,
)
from hetero_hvd.discovery.submission.working_tree import files_of, packed_tree
from hetero_hvd.errors import JobError, TryAgainError, UserError
from hetero_hvd.security.local_sockets import answer_to

SOCKET_VARIABLE = "HETERO_HVD_QUEUE"
PLACES = (Path("/run/hetero_hvd/queue.sock"), Path("hub/queue.sock"))
"""Where the socket is if nothing else is said: that of a hub of root, or of one that runs here."""

ANSWER_SECONDS = 120.0


def submit(
    command: Sequence[str],
    *,
    pool: str = "default",
    priority: str = "normal",
    min_devices: int = 1,
    max_devices: int | None = None,
    needs: Sequence[str] = (),
    retries: int = 3,
    deadline_seconds: float | None = None,
    after: Sequence[int] = (),
    is_command: bool = False,
    time_limit_seconds: float | None = None,
    idle_limit_seconds: float | None = None,
    array: Sequence[int] = (),
    array_limit: int = 0,
    trials: Sequence[SubmittedTrial] = (),
    settings: Mapping[str, object] | None = None,
    socket_path: str | Path | None = None,
) -> int:
    """Give the queue a job: a script with its arguments, as this folder and environment are now.

    Args:
        command: The script and its arguments.
        pool: Whose devices it uses first.
        priority: `high`, `normal` or `low`.
        min_devices: It runs on no fewer.
        max_devices: It is given no more; None: as few as it runs on.
        needs: What each device must fulfil, such as `memory>=16GiB`.
        retries: So many times it is started again after a failure that can heal.
        deadline_seconds: From now on, in which it should have ended.
        after: Jobs that must have succeeded before it starts.
        is_command: Whether it is any program, which runs once, on `min_devices` of one node.
        time_limit_seconds: It is ended after so long with devices; None: 8 h for a command, never
            for a training.
        idle_limit_seconds: A command is ended when its devices did nothing for so long.
        array: Indices: a job for each of them, which finds its own in HETERO_HVD_ARRAY_INDEX.
        array_limit: So many of these run at a time; 0: any number.
        trials: What trials of this script have measured; it is placed by the newest one's.
        settings: Of `hetero-hvd run`, by their names in nodes.yaml.
        socket_path: Of the queue; None: where it is usually.

    Returns:
        The number of the job; of an array that of the first, those of the others follow.

    Raises:
        UserError: It is refused; says why.
    """
    pinned, packed = pinned_job(command, is_command=is_command)
    wanted = {
        "command": pinned,
        "python": sys.executable,
        "environment": dict(os.environ),
        "tree": hashlib.sha256(packed).hexdigest(),
        "tree_bytes": len(packed),
        "settings": {name: scalar_text(value) for name, value in (settings or {}).items()},
        "pool": pool,
        "priority": priority,
        "min_devices": min_devices,
        "max_devices": min_devices if max_devices is None else max_devices,
        "needs": list(needs),
        "retries": retries,
        "deadline_seconds": deadline_seconds,
        "after": list(after),
        "is_command": is_command,
        "time_limit_seconds": time_limit_seconds,
        "idle_limit_seconds": idle_limit_seconds,
        "array": list(array),
        "array_limit": array_limit,
        "trials": list(trials),
    }
    asked = QueueOrder(name="submit", submitted=_submitted(wanted))
    return int(order(asked, packed, socket_path)["job"])


def _submitted(wanted: Mapping[str, Any]) -> SubmittedJob:
    """A job of these fields.

    Raises:
        UserError: One of them cannot be.
    """
    try:
        return msgspec.convert(wanted, SubmittedJob)
    except msgspec.ValidationError as error:
        raise UserError(f"submit: {error}") from error


def pinned_job(command: Sequence[str], *, is_command: bool) -> tuple[list[str], bytes]:
    """The command, and the packed working tree, as they are now.

    Raises:
        UserError: They cannot be had.
    """
    words, files = _pinned(command, is_command=is_command)
    return words, packed_tree(Path(), files)


def check_command(command: Sequence[str], *, is_command: bool) -> None:
    """See that a command can be pinned; nothing is packed.

    Raises:
        UserError: It cannot.
    """
    _pinned(command, is_command=is_command)


def _pinned(command: Sequence[str], *, is_command: bool) -> tuple[list[str], list[Path]]:
    check_texts(command, os.environ.items())
    try:
        Path.cwd()
    except OSError as error:
        raise UserError("submit: this folder is not there any more") from error
    files = sorted(files_of(Path()))
    return list(command) if is_command else pinned_command(command, Path(), set(files)), files


def order(asked: QueueOrder, tree: bytes = b"", socket_path: str | Path | None = None) -> Any:  # noqa: ANN401 - of JSON's kinds
    """Have something done.

    Args:
        asked: What.
        tree: The packed working tree of a job.
        socket_path: Of the queue; None: where it is usually.

    Raises:
        JobError: The queue does not do it, and says why.
        TryAgainError: There is no queue, or it does not do it now.
    """
    path = queue_socket(socket_path)
    line = msgspec.json.encode(asked) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise UserError(
            f"submit: arguments and environment have {len(line)} bytes, must be at most "
            f"{MAX_LINE_BYTES}"
        )
    try:
        content = answer_to(path, line + tree, wait_seconds=ANSWER_SECONDS)
    except OSError as error:
        words = f"no queue answers at {path}: {error.strerror or error}"
        raise TryAgainError(words) from error
    answer = msgspec.json.decode(content or b'{"error": "the hub has ended"}', type=QueueAnswer)
    if answer.error:
        raise (TryAgainError if answer.may_pass else JobError)(*answer.error.splitlines())
    return answer.done


def queue_socket(given: str | Path | None) -> Path:
    """Where a queue is to be asked.

    Args:
        given: Its socket; None: that of the environment, else where it is usually.

    Raises:
        TryAgainError: There is none.
    """
    named = given or os.environ.get(SOCKET_VARIABLE)
    if named:
        return Path(named)
    found = next((path for path in PLACES if path.exists()), None)
    if found is None:
        raise TryAgainError(
            f"no queue is here: neither {PLACES[0]} nor {PLACES[1]} is there; start `hetero-hvd "
            f"hub --queue nodes.yaml`, or name its socket by --socket or {SOCKET_VARIABLE}"
        )
    return found
