"""The process of a job, as its files tell of it: whichever hub has started it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from hetero_hvd.exit_codes import EXIT_NOT_STARTED
from hetero_hvd.hub.queue.job_runner import PACKED
from hetero_hvd.probes.kernel.boot_clock import boot_id
from hetero_hvd.probes.kernel.processes import started_at, state_of
from hetero_hvd.run.records.run_files import regular

logger = logging.getLogger(__name__)

MAX_MARK_BYTES = 4096
TERM_SECONDS, KILL_SECONDS = 60.0, 90.0
"""From the first SIGTERM to a second one, which kills the workers, and to SIGKILL."""

Standing = Literal["absent", "running", "lost"] | int
"""Of a start: not begun, under way, gone without a word, or its exit code."""


class JobUser(NamedTuple):
    """As whom a job runs.

    Attributes:
        uid: The user.
        gid: Its group.
        groups: Its further ones.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]


class JobStart(NamedTuple):
    """What the runner needs.

    Attributes:
        python: The interpreter.
        command: Of the driver.
        environment: Of both.
        tree: SHA-256 of the packed working tree.
    """

    python: str
    command: Sequence[str]
    environment: Mapping[str, str]
    tree: str


class JobProcess:
    """The starts of one job.

    Args:
        folder: Of the job; it belongs to its user.
        user: As whom it runs; None: as this process.
    """

    def __init__(self, folder: Path, user: JobUser | None) -> None:
        self.folder = folder
        self.user = user
        self._uid = os.geteuid() if user is None else user.uid
        self._child: subprocess.Popen[bytes] | None = None
        self._child_attempt = 0
        self._ends: dict[int, float] = {}

    def make(self, tree: bytes) -> None:
        """Make the folder, with the packed working tree in it, on the disk.

        Raises:
            OSError: There is no room.
        """
        self.folder.mkdir(mode=0o700)
        path = self.folder / PACKED
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(tree)
            file.flush()
            os.fsync(file.fileno())
        if self.user is not None:
            for each in (path, self.folder):
                os.chown(each, self.user.uid, self.user.gid)

    def standing(self, attempt: int) -> Standing:
        """What has become of a start."""
        if self._child is not None:
            self._child.poll()  # else it stays as a zombie
        if not attempt:
            return "absent"
        if (code := self._read(f"attempt-{attempt}.exit")) is not None:
            return int(code) if code.isdecimal() else "lost"
        if self._pid(attempt):
            return "running"
        if self._read(f"attempt-{attempt}.json") is not None:
            # It may have left its code since we have looked for that.
            code = self._read(f"attempt-{attempt}.exit")
            return "lost" if code is None or not code.isdecimal() else int(code)
        child = self._child if self._child_attempt == attempt else None
        if child is None:
            return "absent"
        return "running" if child.returncode is None else EXIT_NOT_STARTED

    @property
    def is_reaped(self) -> bool:
        """Whether nothing is left of a start that this process has begun."""
        return self._child is None or self._child.poll() is not None

    def start(self, attempt: int, order: JobStart) -> None:
        """Begin a start, unless another process has it already.

        Raises:
            OSError: The interpreter is not there.
        """
        words = [order.python, "-m", "hetero_hvd.hub.queue.job_runner"]
        child = subprocess.Popen(
            [*words, str(self.folder), str(attempt)],
            cwd="/",
            env=dict(order.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it outlives this hub
            user=None if self.user is None else self.user.uid,
            group=None if self.user is None else self.user.gid,
            extra_groups=None if self.user is None else self.user.groups,
        )
        self._child = child
        self._child_attempt = attempt
        assert child.stdin is not None  # noqa: S101 - it is a pipe
        content = json.dumps({"command": list(order.command), "tree": order.tree}).encode()
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(content)

    def end(self, attempt: int) -> None:
        """Have a start end, with a checkpoint; who does not is killed after a time. Call often."""
        now_seconds = time.monotonic()
        pid = self._pid(attempt)
        if not pid:
            return
        first = attempt not in self._ends
        began = self._ends.setdefault(attempt, now_seconds)
        waited = now_seconds - began
        if waited >= KILL_SECONDS:
            self._signal(pid, attempt, signal.SIGKILL)
        elif first or waited >= TERM_SECONDS:
            self._signal(pid, attempt, signal.SIGTERM)

    def _signal(self, pid: int, attempt: int, number: signal.Signals) -> None:
        """Never to another process that has got its number meanwhile."""
        with suppress(OSError):
            held = os.pidfd_open(pid)
            try:
                if self._pid(attempt) == pid:
                    signal.pidfd_send_signal(held, number)
            finally:
                os.close(held)

    def _pid(self, attempt: int) -> int:
        """Of the runner of a start, as long as it is there; else 0."""
        content = self._read(f"attempt-{attempt}.json")
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(content or "")
            pid, began = int(told["pid"]), int(told["started_at"])
            is_here = told["boot"] == boot_id() and began == started_at(pid) != 0
            return pid if is_here and state_of(pid) not in "Z?" else 0
        return 0

    def _read(self, name: str) -> str | None:
        """What its user has left there; nothing of another one's."""
        content = self.read(name, 0, MAX_MARK_BYTES)
        return None if content is None else content.decode(errors="replace").strip()

    def read(self, name: str, begin: int, length: int) -> bytes | None:
        """A part of a file in the folder; None: there is none that is the user's own."""
        try:
            descriptor = regular(str(self.folder / name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != self._uid:
                return None
            file.seek(begin)
            return file.read(length)
