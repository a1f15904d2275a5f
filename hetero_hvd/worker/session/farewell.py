"""The end of this worker's script: what the driver hears of it, and that nobody waits for it.

A process may live on for long after its script: threads that are no daemons, exit hooks and the
teardown of torch take their time. What it does together with the others ends with the main thread.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from hetero_hvd.core.redaction import encodable
from hetero_hvd.errors import UnreadableError, UserError
from hetero_hvd.messages import Crashed, Entered, FromWorker, ScriptEnded, WorkerId
from hetero_hvd.refusal import Hook, RefusalHook, in_one_line
from hetero_hvd.worker.session.driver_client import DriverClient

SEND_SECONDS, RETRY_SECONDS = 5.0, 0.1
"""For the last word to reach the driver, should the channel be broken just now."""


class Farewell:
    """Tells the driver once how the script has ended, and ends what the worker has with the others.

    A process that ends without a word was lost, whatever its exit code.

    Args:
        client: The way to the driver.
        worker: Who this is.
        progress: Gives the number of applied steps.
        part: Called in a thread at the end of the script: nobody waits for this worker any more.

    Attributes:
        is_said: Whether the driver knows how it ends.
        has_finished: Whether all epochs of the last loop are done.
        on_end: Called in a thread if the script has ended without an error; gives the digest of the
            state that it has kept, empty if it has kept none, and its arithmetic.
    """

    def __init__(
        self,
        client: DriverClient,
        worker: WorkerId,
        *,
        progress: Callable[[], int],
        part: Callable[[], None],
    ) -> None:
        self._client = client
        self._worker = worker
        self._progress = progress
        self._part = part
        hook = sys.excepthook
        self._previous_hook: Hook = hook.previous if isinstance(hook, RefusalHook) else hook
        self.is_said = self.has_finished = False
        self.on_end: Callable[[], tuple[str, str]] = lambda: ("", "")

    def prepare(self) -> None:
        """From now on the driver hears of an exception that ends the script."""
        sys.excepthook = self._raised

    def begin(self, on_end: Callable[[], tuple[str, str]]) -> None:
        """The script begins a loop over epochs."""
        self.has_finished = False
        self.on_end = on_end
        self._client.send(Entered(worker=self._worker))

    def give_up(self, line: str) -> None:
        """The script cannot go on here, which is no error of its own: one line says why."""
        self.is_said = True
        self._send(Crashed(worker=self._worker, error=line, traceback="", user_error=False))

    def await_end(self) -> None:
        """From now on the driver hears of the end of the script.

        The thread is no daemon, so the interpreter, which joins those first, waits for it before it
        takes anything down. A forked child does not have it.
        """
        threading.Thread(target=self._say_at_end, name="farewell").start()

    def _raised(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.is_said = True
        if not issubclass(kind, KeyboardInterrupt):
            lines = list(map(encodable, traceback.format_exception(kind, error, trace)))
            is_user_error, is_of_machine = issubclass(kind, UserError), kind is UnreadableError
            is_known = is_user_error or is_of_machine
            self._send(
                Crashed(
                    worker=self._worker,
                    error=in_one_line(error, trace) if is_known else lines[-1].strip(),
                    traceback="".join(lines),
                    user_error=is_user_error,
                    is_of_machine=is_of_machine,
                    may_pass=isinstance(error, UserError) and error.may_pass,
                )
            )
        self._previous_hook(kind, error, trace)

    def _say_at_end(self) -> None:
        threading.main_thread().join()
        if not self.is_said:
            checksum, arithmetic = self.on_end()
            self.is_said = True
            steps = self._progress()
            self._send(ScriptEnded(applied_steps=steps, checksum=checksum, arithmetic=arithmetic))
        self._part()

    def _send(self, message: FromWorker) -> None:
        deadline = time.monotonic() + SEND_SECONDS
        while not self._client.send(message) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
