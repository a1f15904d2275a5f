"""Runs the user's own program for an episode, without a shell; facts are in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from hetero_hvd.config.variables import SET_FOR_GUARD_COMMAND
from hetero_hvd.driver.guard.notifier import Notice
from hetero_hvd.errors import JobError

TIMEOUT_SECONDS = 60.0


class ToldCommand:
    """One program.

    Args:
        command: It and its arguments.
        timeout_seconds: It is killed after so long, with whatever it has started.
    """

    def __init__(
        self, command: tuple[str, ...], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._starting = threading.Lock()

    @property
    def shown(self) -> str:
        """Its name without its arguments, which may be secret."""
        return f"command {Path(self._command[0]).name}"

    def deliver(self, notice: Notice) -> None:
        """Run it to its end; after `close`, do nothing.

        Raises:
            JobError: It cannot be started, does not end in time, or fails. What it does is not
                known to do no harm a second time, so there is none.
        """
        facts = {
            variable: _text(notice[field]) for variable, (field, _) in SET_FOR_GUARD_COMMAND.items()
        }
        with self._starting:
            if self._is_closed:
                return
            try:
                self._running = running = subprocess.Popen(
                    self._command,
                    env=os.environ | facts,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise JobError(f"cannot be started: {error.strerror or error}") from None
        try:
            code = running.wait(self._timeout_seconds)
        except subprocess.TimeoutExpired:
            raise JobError(f"has not ended within {self._timeout_seconds:g} s, is killed") from None
        finally:
            self._kill()
        if code and not self._is_closed:
            raise JobError(f"has ended with exit code {code}")

    def close(self) -> None:
        """Kill it and what it has started, if it still runs; it is not started again."""
        with self._starting:
            self._is_closed = True
        self._kill()

    def _kill(self) -> None:
        if (running := self._running) is not None and running.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _text(fact: object) -> str:
    return " ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
