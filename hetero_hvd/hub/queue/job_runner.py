"""A start of a job: `python -m hetero_hvd.hub.queue.job_runner FOLDER ATTEMPT`.

It is started by the hub, as the job's user, with the interpreter that was pinned; it outlives the
hub. It holds the job's lock, so that no two starts of a job ever run beside each other, unpacks the
working tree, runs the driver, passes SIGTERM on to it, and leaves its exit code in a file for
whichever hub is there then. Standard library only, so that it costs little beside the driver.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hetero_hvd.discovery.submission.working_tree import unpack
from hetero_hvd.exit_codes import EXIT_FAILED, EXIT_NOT_STARTED, EXIT_USER_ERROR, as_exit_code
from hetero_hvd.probes.kernel.boot_clock import boot_id
from hetero_hvd.probes.kernel.parent_process import dies_with
from hetero_hvd.probes.kernel.processes import started_at

LOCK, LOG, PACKED, TREE = "lock", "log.txt", "tree.tar.gz", "tree"
LOCK_SECONDS = 60.0
"""For an earlier start of the job to end, which was asked to."""


class DriverEndings:
    """Passes each SIGTERM on to the driver, as soon as there is one."""

    def __init__(self) -> None:
        self._driver: subprocess.Popen[bytes] | None = None
        self._is_asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._came)

    def begin(self, driver: subprocess.Popen[bytes]) -> None:
        """The driver is there."""
        self._driver = driver
        if self._is_asked:
            driver.send_signal(signal.SIGTERM)

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        if self._driver is not None:
            self._driver.send_signal(signal.SIGTERM)


def main(folder: Path, attempt: int) -> int:
    """Run it; the order is on the standard input. Gives the driver's exit code."""
    order = json.load(sys.stdin)
    os.umask(0o077)
    held = _locked(folder)
    if held is None:
        return EXIT_NOT_STARTED
    endings = DriverEndings()  # before anybody knows whom to ask
    mark = folder / f"attempt-{attempt}.json"
    told = {"pid": os.getpid(), "started_at": started_at(os.getpid()), "boot": boot_id()}
    if not _write_once(mark, json.dumps(told)):
        return EXIT_NOT_STARTED  # another process has this start already
    code = EXIT_FAILED
    try:
        log = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.dup2(log, sys.stderr.fileno())  # an error of ours belongs there, too
        code = _done(folder, order, held, endings)
    finally:
        _write_once(folder / f"attempt-{attempt}.exit", str(code))
    return code


def _done(folder: Path, order: dict[str, Any], held: int, endings: DriverEndings) -> int:
    try:
        _unpack(folder, order["tree"])
    except (OSError, tarfile.TarError, ValueError) as error:
        sys.stderr.write(f"the working tree cannot be unpacked: {error}\n")
        return EXIT_USER_ERROR
    return _run(order["command"], folder / TREE, held, endings)


def _locked(folder: Path) -> int | None:
    """Have the job, as soon as nobody else has it; None: somebody has."""
    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        else:
            return held


def _write_once(path: Path, text: str) -> bool:
    """Make a file as a whole; False: it is there already."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    try:
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        new.unlink()
    return True


def _unpack(folder: Path, digest: str) -> None:
    """Make the working tree of what was submitted, once.

    Raises:
        ValueError: It is not that any more.
    """
    tree, packed = folder / TREE, folder / PACKED
    if tree.exists():
        return
    with packed.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ValueError(f"{packed} is not what was submitted")
    new = folder / f".{TREE}"
    shutil.rmtree(new, ignore_errors=True)
    with packed.open("rb") as file:
        unpack(file, new)
    new.rename(tree)


def _run(command: Sequence[str], tree: Path, held: int, endings: DriverEndings) -> int:
    """The driver, until it has ended."""
    try:
        driver = subprocess.Popen(
            command,
            cwd=tree,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            start_new_session=True,  # each signal reaches it once, through us
            pass_fds=[held],
            preexec_fn=_ended_with(os.getpid()),  # noqa: PLW1509 - there are no threads here
        )
    except OSError as error:
        sys.stderr.write(f"cannot be started: {error}\n")
        return EXIT_NOT_STARTED
    endings.begin(driver)
    return as_exit_code(driver.wait())


def _ended_with(parent: int) -> Callable[[], None]:
    def prepare() -> None:
        if not dies_with(parent):
            os._exit(EXIT_NOT_STARTED)

    return prepare


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
