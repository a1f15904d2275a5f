"""The process of a job, as its files tell of it: whichever hub has started it."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from hetero_hvd.core.queue.healing import FailureCause
from hetero_hvd.exit_codes import (
    EXIT_KILLED,
    EXIT_NO_PLACE,
    EXIT_NOT_KEPT,
    EXIT_TERMINATED,
    EXIT_TRY_AGAIN,
)
from hetero_hvd.hub.queue.job_runner import PACKED
from hetero_hvd.probes.kernel.boot_clock import boot_id
from hetero_hvd.probes.kernel.processes import runs_as, started_at, state_of
from hetero_hvd.run.records.run_files import regular

logger = logging.getLogger(__name__)

MAX_MARK_BYTES = 4096
MAX_PID = 2**22
OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO})
"""What the hub itself lacks for a while; it says nothing about a job."""

TERM_SECONDS, KILL_SECONDS = 60.0, 90.0
"""From the first SIGTERM to a second one, which kills the workers, and to SIGKILL."""

Standing = Literal["absent", "running", "lost", "not_started"] | int
"""Of a start: not begun, under way, gone without a word, impossible, or its exit code."""

CAUSES: Mapping[Standing, FailureCause] = {
    "lost": "node_lost",
    "not_started": "not_started",
    EXIT_TRY_AGAIN: "node_lost",
    EXIT_NO_PLACE: "preempted",
    EXIT_NOT_KEPT: "not_kept",
    EXIT_KILLED: "preempted",
    EXIT_TERMINATED: "preempted",
}
"""What an end tells that nobody here has asked for; any other one is the script's."""


def cause_of(standing: Standing, *, is_program: bool) -> FailureCause:
    """Why a start has failed.

    Args:
        standing: What has become of it.
        is_program: Whether it is no training, so that it keeps no state that we know of.
    """
    cause = CAUSES.get(standing, "script_error")
    return "script_error" if is_program and cause == "not_kept" else cause


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


class StartMark(msgspec.Struct, frozen=True):
    """What a runner says of itself. It is its user's file, so nothing in it is to be believed."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=MAX_PID)]
    started_at: int
    boot: str


class NotedStart(StartMark, frozen=True, kw_only=True):
    """What a hub notes of a runner that it has started, where the runner's user cannot write."""

    attempt: int


class JobProcess:
    """The starts of one job.

    Args:
        folder: Of the job; it belongs to its user.
        note: File of the hub's own in which the newest start is noted.
        uid: Of its user.
        user_of: As whom a user's jobs run, by number; None: as this process.
    """

    def __init__(
        self, folder: Path, note: Path, uid: int, user_of: Callable[[int], JobUser | None]
    ) -> None:
        self.folder = folder
        self._note = note
        self._noted = _read_note(note)
        self._user_of = user_of
        self._uid = uid
        self._child: subprocess.Popen[bytes] | None = None
        self._child_attempt = 0
        self._ends: dict[int, float] = {}

    @property
    def user(self) -> JobUser | None:
        """As whom it runs; None: as this process.

        Raises:
            UserError: The machine does not know the user any more.
        """
        return self._user_of(self._uid)

    def make(self, tree: bytes) -> None:
        """Make the folder, with the packed working tree in it, on the disk.

        Raises:
            OSError: There is no room.
            UserError: The machine does not know its user.
        """
        user = self.user
        self.folder.mkdir(mode=0o700)
        path = self.folder / PACKED
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(tree)
            file.flush()
            os.fsync(file.fileno())
        if user is not None:
            for each in (path, self.folder):
                os.chown(each, user.uid, user.gid)

    def standing(self, attempt: int) -> Standing:
        """What has become of a start."""
        is_over = self.is_reaped  # else it stays as a zombie
        if not attempt:
            return "absent"
        if (self._child_attempt == attempt and not is_over) or self._noted_pid(attempt):
            return "running"  # whatever its user has written
        if (code := self._read(f"attempt-{attempt}.exit")) is not None:
            return int(code) if code.isdecimal() else "lost"
        if self._pid(attempt):
            return "running"
        if self._read(f"attempt-{attempt}.json") is not None:
            # It may have left its code since we have looked for that.
            code = self._read(f"attempt-{attempt}.exit")
            return "lost" if code is None or not code.isdecimal() else int(code)
        return "not_started" if self._child_attempt == attempt else "absent"

    @property
    def is_reaped(self) -> bool:
        """Whether nothing is left of a start that this process has begun."""
        return self._child is None or self._child.poll() is not None

    def start(self, attempt: int, order: JobStart) -> None:
        """Begin a start, unless another process has it already.

        Raises:
            OSError: The interpreter is not there.
            ValueError: The system has no such words.
            UserError: The machine does not know its user any more.
        """
        words = [order.python, "-m", "hetero_hvd.hub.queue.job_runner"]
        user = self.user
        content = json.dumps({"command": list(order.command), "tree": order.tree}).encode()
        # Never a pipe: the interpreter is the user's word, and may read nothing for ever.
        with os.fdopen(os.memfd_create("order"), "w+b") as told:
            told.write(content)
            told.seek(0)
            self._child = subprocess.Popen(
                [*words, str(self.folder), str(attempt)],
                cwd="/",
                env=dict(order.environment),
                stdin=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it outlives this hub
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
                extra_groups=None if user is None else user.groups,
            )
        self._child_attempt = attempt
        pid = self._child.pid
        self._noted = NotedStart(pid, started_at(pid), boot_id(), attempt=attempt)
        with suppress(OSError):  # what the runner says of itself has to do for the next hub then
            new = self._note.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._noted))
            new.replace(self._note)

    def end(self, attempt: int) -> None:
        """Have a start end, with a checkpoint; who does not is killed after a time. Call often."""
        now_seconds = time.monotonic()
        pids = self._pids(attempt)
        if not pids:
            return
        first = attempt not in self._ends
        began = self._ends.setdefault(attempt, now_seconds)
        waited = now_seconds - began
        if first or waited >= TERM_SECONDS:
            number = signal.SIGKILL if waited >= KILL_SECONDS else signal.SIGTERM
            for pid in pids:
                self._signal(pid, attempt, number)

    def _signal(self, pid: int, attempt: int, number: signal.Signals) -> None:
        """Never to another process that has got its number meanwhile."""
        with suppress(OSError):
            held = os.pidfd_open(pid)
            try:
                if pid in self._pids(attempt):
                    signal.pidfd_send_signal(held, number)
            finally:
                os.close(held)

    def _pids(self, attempt: int) -> set[int]:
        """Of the runner of a start: as it says, as a hub has noted, and as this process knows."""
        pids = {self._pid(attempt), self._noted_pid(attempt)}
        if self._child is not None and self._child_attempt == attempt and not self.is_reaped:
            pids.add(self._child.pid)
        return pids - {0}

    def _pid(self, attempt: int) -> int:
        """Of the runner of a start, as long as it is there; else 0. Never another user's."""
        content = self._read(f"attempt-{attempt}.json")
        try:
            told = msgspec.json.decode(content or "", type=StartMark)
        except (msgspec.DecodeError, RecursionError):
            return 0
        return told.pid if _is_there(told) and runs_as(told.pid, self._uid) else 0

    def _noted_pid(self, attempt: int) -> int:
        """Of the runner of a start that a hub has begun, as long as it is there; else 0."""
        noted = self._noted
        is_here = noted is not None and noted.attempt == attempt and _is_there(noted)
        return noted.pid if noted is not None and is_here else 0

    def _read(self, name: str) -> str | None:
        """What its user has left there; nothing of another one's."""
        content = self.read(name, 0, MAX_MARK_BYTES)
        return None if content is None else content.decode(errors="replace").strip()

    def read(self, name: str, begin: int, length: int) -> bytes | None:
        """A part of a file in the folder; None: there is none that is the user's own.

        Raises:
            OSError: This process cannot tell now.
        """
        try:
            descriptor = regular(str(self.folder / name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in OF_THIS_PROCESS:
                raise  # else a job that runs would be taken for one that does not
            return None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != self._uid:
                return None
            file.seek(begin)
            return file.read(length)


def _read_note(path: Path) -> NotedStart | None:
    """What a hub has noted; None: nothing, or not as a whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NotedStart)
    except (OSError, msgspec.DecodeError):
        return None


def _is_there(mark: StartMark) -> bool:
    """Whether that process runs, and not another one that has got its number."""
    is_same = mark.boot == boot_id() and mark.started_at == started_at(mark.pid) != 0
    return is_same and state_of(mark.pid) not in "Z?"
