"""Where the script is: which operation with the others it waits in.

Only the heartbeat asks, once a second: the training itself pays nothing for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from hetero_hvd.refusal import LIBRARIES, PACKAGE

DOOR = str(Path(PACKAGE, "worker", "comm", "horovod.py"))

OPERATIONS = {
    "ElasticState.recover": "a new rendezvous",
    "ElasticState._meet": "a new rendezvous",
    "ElasticState.enter": "the start of trainer.epochs()",
    "ElasticState.finish": "the end of trainer.epochs()",
    "ElasticState.step_taken": "trainer.step()",
    "Evaluations._together": "trainer.evaluate()",
    "Pipeline.drain": "trainer.step()",
    "Pipeline.take": "trainer.step()",
    "contribute": "trainer.step()",
}
"""Function of this package to what the script calls it; the innermost one counts."""


DEEPEST = 16
"""A thread that waits is in the door so many calls from its innermost one at most."""


def waits_in(thread: int) -> tuple[str, str]:
    """What a thread waits in together with the other workers, and where the script called it.

    Args:
        thread: Its `threading.get_ident()`.

    Returns:
        The operation, and `script.py:41`; two empty texts if it does not wait for others.
    """
    operation = ""
    for frame in frames_from({(DOOR, "wait")}, thread):
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            operation = operation or OPERATIONS.get(code.co_qualname, "")
        elif not code.co_filename.startswith(LIBRARIES):
            return operation, place_of(frame)
    return operation, ""


def frames_from(doors: set[tuple[str, str]], thread: int) -> Iterator[FrameType]:
    """The frames of a thread from the door in which it waits on outwards; none if it does not wait.

    Args:
        doors: File and name of the functions in which one waits.
        thread: Its `threading.get_ident()`.
    """
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - its name in the library's manual
    is_waiting, depth = False, 0
    # The stack of a thread that is not waiting changes meanwhile: what comes then may be no frame.
    while isinstance(frame, FrameType) and (is_waiting or depth < DEEPEST):
        depth += 1
        is_waiting = is_waiting or (frame.f_code.co_filename, frame.f_code.co_name) in doors
        if is_waiting:
            yield frame
        frame = frame.f_back


def place_of(frame: FrameType) -> str:
    """`script.py:41`."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
