"""Where the script is: which operation with the others it waits in.

Only the heartbeat asks, once a second: the training itself pays nothing for it.
"""

from __future__ import annotations

import sys
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
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - its name in the library's manual
    is_waiting, operation, depth = False, "", 0
    # The stack of a thread that is not waiting changes meanwhile: what comes then may be no frame.
    while isinstance(frame, FrameType) and (is_waiting or depth < DEEPEST):
        depth += 1
        code = frame.f_code
        is_waiting = is_waiting or (code.co_filename == DOOR and code.co_name == "wait")
        if is_waiting and code.co_filename.startswith(PACKAGE):
            operation = operation or OPERATIONS.get(code.co_qualname, "")
        elif is_waiting and not code.co_filename.startswith(LIBRARIES):
            return operation, place_of(frame)
        frame = frame.f_back
    return (operation, "") if is_waiting else ("", "")


def place_of(frame: FrameType) -> str:
    """`script.py:41`."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
