"""How the script of this process has ended, as far as the process itself can tell."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from hetero_hvd.core.redaction import encodable
from hetero_hvd.errors import UnreadableError, UserError
from hetero_hvd.exit_codes import EXIT_FAILED, SIGNALLED, exit_of_user_error
from hetero_hvd.messages import Crashed, WorkerId
from hetero_hvd.refusal import in_one_line

INTERRUPTED = SIGNALLED + 2
"""By SIGINT."""


class _NotedExit(SystemExit):
    """What `sys.exit` raises; tells whether somebody has caught it, and the script has gone on.

    Args:
        code: As it was given.
        caught: Called then.
    """

    def __init__(self, code: object, caught: Callable[[], None]) -> None:
        super().__init__(code)
        self._caught = caught

    def __del__(self) -> None:
        if sys._getframe().f_back is not None:  # noqa: SLF001 - the interpreter alone has no frame
            self._caught()


class ScriptEnd:
    """Notes what ends the script, an exception or `sys.exit`; without either it has ended well.

    Args:
        worker: Who this is.
        tell: Told of the exception.
    """

    def __init__(self, worker: WorkerId, tell: Callable[[Crashed], None]) -> None:
        self._worker = worker
        self._tell = tell
        self._process = os.getpid()
        self._previous = sys.excepthook
        self._ending: tuple[int, str] | None = None
        self._exits: list[int] = []
        sys.excepthook = self._raised
        sys.exit = self._exit

    @property
    def ending(self) -> tuple[int, str] | None:
        """Exit code and reason; None: there was neither an exception nor another code than 0."""
        if self._ending is None and self._exits and (code := self._exits[-1]):
            return code, f"the script has ended with exit code {code}"
        return self._ending

    def _exit(self, code: object = None) -> NoReturn:
        is_main = threading.current_thread() is threading.main_thread()
        if os.getpid() != self._process or not is_main:  # that ends another process, or a thread
            raise SystemExit(code)
        self._exits.append(_exit_code(code))
        raise _NotedExit(code, self._exits.clear)

    def _raised(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._process:  # a forked child has its own end
            if issubclass(kind, KeyboardInterrupt):
                self._ending = INTERRUPTED, "ended by SIGINT"
            else:
                self._crashed(traceback.format_exception(kind, error, trace), error)
        self._previous(kind, error, trace)

    def _crashed(self, lines: list[str], error: BaseException) -> None:
        lines = list(map(encodable, lines))
        is_input = isinstance(error, UserError)
        may_pass = isinstance(error, UserError) and error.may_pass
        is_known = isinstance(error, UserError | UnreadableError)
        said = in_one_line(error, error.__traceback__) if is_known else lines[-1].strip()
        code = exit_of_user_error(may_pass=may_pass) if is_input else EXIT_FAILED
        self._ending = code, f"{self._worker}: {said}"
        self._tell(
            Crashed(
                worker=self._worker,
                error=said,
                traceback="".join(lines),
                user_error=is_input,
                may_pass=may_pass,
            )
        )


def _exit_code(code: object) -> int:
    """What the system is told: of a text, which is printed, that it has failed."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else EXIT_FAILED
