"""Wrong input that ends a script: one line and an exit code for it, however the script was started.

Python calls the hook for what nobody has caught. It is there as soon as the package is imported: a
script opens its data, and asks for its options, long before it makes a trainer.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from hetero_hvd.errors import UnreadableError, UserError
from hetero_hvd.exit_codes import (
    EXIT_CUT_OFF,
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_UNFIT,
    exit_of_user_error,
)

PACKAGE = str(Path(__file__).parent) + os.sep
LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platlib", "purelib"))

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def refuse_in_one_line() -> None:
    """From now on what is wrong with the input is told in one line, unless it is told so already.

    Nobody can tell our driver more than the exit code before this worker is admitted.
    """
    if not isinstance(sys.excepthook, RefusalHook):
        sys.excepthook = RefusalHook(sys.excepthook)


class RefusalHook:
    """An exception hook for wrong input, and for data that cannot be read on this machine.

    Args:
        previous: For all else.
    """

    def __init__(self, previous: Hook) -> None:
        self.previous = previous

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """See `sys.excepthook`."""
        if not issubclass(kind, UserError | UnreadableError):
            self.previous(kind, error, trace)
            return
        with suppress(AttributeError, OSError, ValueError):  # nobody may read it any more
            sys.stdout.flush()
        with suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(f"{in_one_line(error, trace)}\n")
            sys.stderr.flush()
        if hasattr(sys, "ps1") or sys.flags.inspect:
            return  # somebody types at this interpreter
        os._exit(_code_of_worker(error)) if _is_under_driver() else sys.exit(_code_alone(error))


def _code_of_worker(error: BaseException) -> int:
    if not isinstance(error, UserError):
        return EXIT_UNFIT
    return EXIT_CUT_OFF if error.may_pass else EXIT_REFUSED  # the one is started again


def _code_alone(error: BaseException) -> int:
    if not isinstance(error, UserError):
        return EXIT_FAILED
    return exit_of_user_error(may_pass=error.may_pass)


def in_one_line(error: BaseException, trace: TracebackType | None) -> str:
    """What is wrong, and where the script has called it."""
    place = raised_in(trace)
    text = f"{error} ({place})" if place else str(error)
    return text.encode(errors="backslashreplace").decode()


def raised_in(trace: TracebackType | None) -> str:
    """Where the script has called what an error comes from: `script.py:41`, or empty."""
    place = ""
    for frame, line in traceback.walk_tb(trace):
        if not frame.f_code.co_filename.startswith((PACKAGE, "<", *LIBRARIES)):
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return place


def _is_under_driver() -> bool:
    from hetero_hvd.messages.launch import WORKER_VARIABLE  # noqa: PLC0415 - nobody waits for it

    return WORKER_VARIABLE in os.environ
