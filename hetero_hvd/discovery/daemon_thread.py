"""Calls that may hang, such as a name server's: in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


def in_daemon_thread(call: Callable[[], Result]) -> asyncio.Future[Result]:
    """Call something in a thread of its own.

    Unlike one of `asyncio.to_thread`, that thread takes no place of others while it hangs, and
    neither the loop's end nor the process's waits for it. Whoever calls this bounds how many there
    are.

    Args:
        call: Blocks; its own time limit, if it has one, ends the thread.

    Returns:
        For its result or its error, in the loop that runs now; OSError: no thread can be had.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():  # it was cancelled
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # there is one if there is no error
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - it is the caller's
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    try:
        threading.Thread(target=run, name="may-hang", daemon=True).start()
    except RuntimeError as error:
        future.set_exception(OSError(errno.EAGAIN, str(error)))
    return future
