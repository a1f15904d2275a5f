"""SIGTERM at this process: the first is a wish, a further one ends it wherever it is."""

from __future__ import annotations

import math
import os
import signal
import threading
import time

from hetero_hvd.exit_codes import EXIT_TERMINATED
from hetero_hvd.worker.session.launch_settings import in_step_of_slurm

AGAIN_SECONDS = 2.0
"""A SIGTERM that comes sooner after the first one is the same wish: who stops a whole machine or
control group signals the supervisor too, which passes it on."""


class Sigterm:
    """Hears of it.

    Attributes:
        has_come: Whether this worker is to finish its step and leave.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._came_at_seconds = 0.0

    def listen(self) -> None:
        """From now on; a handler of the script's own stays.

        In a step of Slurm a later one is no more than the first; SIGKILL follows there anyway.
        """
        is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if not is_free or threading.current_thread() is not threading.main_thread():
            return

        def terminated(*_: object) -> None:
            now_seconds = time.monotonic()
            if not self.has_come:
                self.has_come = True
                self._came_at_seconds = now_seconds
            elif not is_lent and now_seconds > self._came_at_seconds + AGAIN_SECONDS:
                os._exit(EXIT_TERMINATED)

        is_lent = in_step_of_slurm()
        signal.signal(signal.SIGTERM, terminated)
        if not is_lent:
            _end_if_asked_again()


def _end_if_asked_again() -> None:
    """End this process at a further SIGTERM, though its main thread may be in C for ever.

    No handler runs there, but Python tells of each signal through the wakeup descriptor. A script's
    own one stays: then there is the handler only. A forked child would write into ours: it must
    not, and is told of no signal until it has put that right.
    """
    asked, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    own = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    if own != -1:
        signal.set_wakeup_fd(own)
        os.close(asked)
        os.close(wakeup)
        return

    def forget() -> None:
        if (found := signal.set_wakeup_fd(-1)) not in (wakeup, -1):
            signal.set_wakeup_fd(found)
        _release()

    def watch() -> None:
        again_at_seconds = math.inf
        while numbers := os.read(asked, 4096):
            if signal.SIGTERM not in numbers:
                continue
            now_seconds = time.monotonic()
            if now_seconds > again_at_seconds:
                os._exit(EXIT_TERMINATED)
            again_at_seconds = min(again_at_seconds, now_seconds + AGAIN_SECONDS)

    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=forget)
    threading.Thread(target=watch, name="sigterm", daemon=True).start()


_forking = threading.local()


def _hold() -> None:
    """Before a fork: SIGTERM waits in this thread, which the child goes on with."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    """After it, on either side; a fork may have begun before it could be held."""
    if signal.SIGTERM not in getattr(_forking, "mask", ()):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
