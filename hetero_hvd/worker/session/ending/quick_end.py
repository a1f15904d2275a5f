"""The end of the interpreter of a worker that was asked to end: the others wait for its node.

At its end Python looks for cycles among all objects there are, several times, and takes apart what
it finds. With torch loaded that takes two seconds and more, for memory that the process gives back
a moment later. Everything else goes on as ever: threads are joined, exit hooks run, files are
written and closed, and the exit code stays.
"""

from __future__ import annotations

import gc
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_BUFFERED = (io.BufferedWriter, io.BufferedRandom)
_ANY_FILE: type = io.IOBase.__mro__[1]
"""What all files inherit from that Python closes when it takes them apart."""

_is_asked_for = threading.Event()


def end_quickly() -> None:
    """The interpreter is about to end, and shall not take long."""
    _is_asked_for.set()


def leave_cycles() -> None:
    """After all exit hooks, `worker/site` calls this: leave alone what only a search would find."""
    if not _is_asked_for.is_set():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it is closed, or nobody reads it
            stream.flush()
    for file in sorted(_open_files(), key=_height):
        with suppress(Exception):
            file.close()
    gc.freeze()


def _open_files() -> Iterator[Any]:
    """Those that hold something back until they are closed, but the standard streams."""
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    buffers = [getattr(one, "buffer", None) for one in streams]
    spared = {id(one) for one in (*streams, *buffers, *(getattr(b, "raw", b) for b in buffers))}
    for found in gc.get_objects():
        if issubclass(type(found), _ANY_FILE) and id(found) not in spared:
            yield found


def _height(file: Any) -> int:  # noqa: ANN401 - any object
    """From the top: text over what compresses, say, over bytes, over what the system knows."""
    if isinstance(file, io.TextIOWrapper):
        return 0
    if isinstance(file, _BUFFERED):
        return 2
    return 3 if type(file).__module__ == "_io" else 1
