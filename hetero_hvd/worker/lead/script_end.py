"""How the script of this process has ended, as far as the process itself can tell."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from hetero_hvd.core.redaction import encodable
from hetero_hvd.errors import UnreadableError, UserError
from hetero_hvd.exit_codes import EXIT_FAILED, EXIT_USER_ERROR, SIGNALLED
from hetero_hvd.messages import Crashed, WorkerId
from hetero_hvd.refusal import in_one_line

INTERRUPTED = SIGNALLED + 2
"""By SIGINT."""


class ScriptEnd:
    """Notes an exception that ends the script; without one it has ended well.

    Args:
        worker: Who this is.
        tell: Told of the exception.

    Attributes:
        ending: Exit code and reason of an exception; None: there was none.
    """

    def __init__(self, worker: WorkerId, tell: Callable[[Crashed], None]) -> None:
        self._worker = worker
        self._tell = tell
        self._process = os.getpid()
        self._previous = sys.excepthook
        self.ending: tuple[int, str] | None = None
        sys.excepthook = self._raised

    def _raised(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._process:  # a forked child has its own end
            if issubclass(kind, KeyboardInterrupt):
                self.ending = INTERRUPTED, "ended by SIGINT"
            else:
                self._crashed(traceback.format_exception(kind, error, trace), error)
        self._previous(kind, error, trace)

    def _crashed(self, lines: list[str], error: BaseException) -> None:
        lines = list(map(encodable, lines))
        is_input = isinstance(error, UserError)
        is_known = isinstance(error, UserError | UnreadableError)
        said = in_one_line(error, error.__traceback__) if is_known else lines[-1].strip()
        code = EXIT_USER_ERROR if is_input else EXIT_FAILED
        self.ending = code, f"{self._worker}: {said}"
        self._tell(
            Crashed(
                worker=self._worker,
                error=said,
                traceback="".join(lines),
                user_error=is_input,
            )
        )
