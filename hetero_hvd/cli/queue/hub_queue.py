"""What `hetero-hvd hub` takes to have a queue of jobs."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from hetero_hvd.config.paths import some_path
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.hub.queue.queue_service import HubQueue
    from hetero_hvd.security.local_sockets import PeerUser


def add_queue(command: argparse.ArgumentParser) -> None:
    """The flags."""
    command.add_argument(
        "--queue",
        type=some_path,
        metavar="NODES",
        help="a nodes.yaml whose devices hetero-hvd submit gives to jobs (default: no queue)",
    )
    command.add_argument(
        "--queue-socket", type=some_path, metavar="PATH", help="default: queue.sock in the store"
    )
    command.add_argument(
        "--queue-operator",
        action="append",
        default=[],
        metavar="USER",
        help="may cancel, hold and read the jobs of all; may be given again (root always may)",
    )
    command.add_argument(
        "--queue-token",
        action="append",
        default=[],
        metavar="USER=FILE",
        help="mode 0600; who shows its token over HTTP is that user; may be given again",
    )


def queue_of(arguments: argparse.Namespace) -> HubQueue | None:
    """What they say; None: no queue is wanted.

    Raises:
        UserError: One of them is given in vain.
    """
    from hetero_hvd.hub.queue.queue_service import HubQueue  # noqa: PLC0415 - not for all

    if arguments.queue is None:
        for name in ("queue_socket", "queue_operator", "queue_token"):
            if getattr(arguments, name):
                raise UserError(f"--{name.replace('_', '-')}: needs --queue NODES")
        return None
    for name in arguments.queue_operator:
        _uid_of("--queue-operator", name)
    return HubQueue(
        nodes=arguments.queue,
        environment=os.environ,
        socket=arguments.queue_socket,
        operators=tuple(arguments.queue_operator),
        tokens=tuple(map(_token, arguments.queue_token)),
    )


def _token(text: str) -> tuple[bytes, PeerUser]:
    """A token, and whose it is.

    Raises:
        UserError: There is no such user, or no such token.
    """
    from hetero_hvd.security.local_sockets import PeerUser  # noqa: PLC0415
    from hetero_hvd.security.token import read_token  # noqa: PLC0415

    name, mark, path = text.partition("=")
    if not (name and mark and path):
        raise UserError(f"--queue-token: found {text!r}, must be USER=FILE")
    uid = _uid_of("--queue-token", name)
    token = read_token(path, "--queue-token")
    assert token is not None  # noqa: S101 - there is a path
    return token, PeerUser(uid, name)


def _uid_of(flag: str, name: str) -> int:
    """The number of a user.

    Raises:
        UserError: There is none of that name.
    """
    import pwd  # noqa: PLC0415 - not for all

    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError) as error:
        raise UserError(f"{flag}: this machine knows no user {name!r}") from error
