"""Follows this node's samples, and sees to it that somebody takes them.

Standard library only, and a few file operations a second: a supervisor, an agent or a worker of a
script that runs alone has one. Whoever gets the lock starts the sampler, in a process of its own:
what hangs in a GPU's driver holds up nobody, and a worker's interpreter is not taken from it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hetero_hvd.probes.sampling.sample_rate import RateWish
from hetero_hvd.probes.sampling.shared_folder import SharedFolder, Version

SAMPLE, EQUIPMENT = "sample", "equipment"
"""Files in the folder: a `NodeSampled` and a `NodeEquipped` as JSON."""

LOOK_SECONDS = 0.25
LOOKS_PER_SAMPLE = 4
HANG_SECONDS = 15.0
"""A sampler that has written nothing for so long is killed."""

RETRY_SECONDS = 10.0
"""After a sampler that has failed, before the next one."""

ASKED_TO_END = (-signal.SIGTERM, -signal.SIGHUP)
"""How a sampler ends that was told so together with us, as all processes of a Slurm job are."""

END_SECONDS = 1.0
_PROGRAM = "hetero_hvd.probes.sampling.sampler"
_TOLERANCE_SECONDS = 0.4
_MAX_ERROR_BYTES = 4096


class SampleFollower:
    """Hands on each new sample, from a thread of its own. Never raises there, never blocks others.

    Args:
        take: Called with each file that is new, as it was written: it may be anything.
        seconds: Between two samples; below 1 the sampler takes more than one each second. A
            function is asked at each look.
        say: Told once of each reason for which there are no samples.
        find_folder: Gives the folder to share; the node's own by default.
        hang_seconds: See `HANG_SECONDS`.
        retry_seconds: See `RETRY_SECONDS`.
    """

    def __init__(
        self,
        take: Callable[[bytes], None],
        *,
        seconds: float | Callable[[], float] = 1.0,
        say: Callable[[str], None] = lambda _: None,
        find_folder: Callable[[], SharedFolder] = SharedFolder.of_this_node,
        hang_seconds: float = HANG_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._take = take
        self._seconds = seconds if callable(seconds) else lambda: seconds
        self._wish = RateWish()
        self._say = say
        self._find_folder = find_folder
        self._hang_seconds = hang_seconds
        self._retry_seconds = retry_seconds
        self._told: set[str] = set()
        self._closed = threading.Event()
        self._sampler: subprocess.Popen[bytes] | None = None
        self._retry_at_seconds = float("-inf")
        self._seen: Version | None = None
        self._heard_at_seconds = float("-inf")
        self._taken_at_seconds = float("-inf")
        self._equipment: Version | None = None
        self._thread = threading.Thread(target=self._follow, name="hetero-hvd-samples", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and the sampler with it, if it is ours."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(2 * END_SECONDS)

    def _follow(self) -> None:
        folder: SharedFolder | None = None
        try:
            while not self._closed.is_set():
                try:
                    folder = self._look(folder)
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    folder = None
                    self._retry_at_seconds = time.monotonic() + self._retry_seconds
                    self._tell(f"no samples of this node: {error}")
                self._closed.wait(min(LOOK_SECONDS, self._seconds() / LOOKS_PER_SAMPLE))
        finally:
            self._end_sampler()

    def _look(self, folder: SharedFolder | None) -> SharedFolder | None:
        now_seconds = time.monotonic()
        if folder is None:
            if now_seconds < self._retry_at_seconds:
                return None
            folder = self._find_folder()
            self._seen = folder.version(SAMPLE)  # it may be of a sampler that has long ended
        self._wish.say(folder, self._seconds())
        version = folder.version(SAMPLE)
        is_new = version not in (None, self._seen)
        if is_new:  # first: we may have been stopped ourselves, and not the sampler
            self._heard_at_seconds = now_seconds
        self._keep_sampled(folder, now_seconds)
        if not is_new:
            return folder if folder.path.is_dir() else None
        self._seen = version
        if now_seconds - self._taken_at_seconds >= self._seconds() - _TOLERANCE_SECONDS:
            self._taken_at_seconds = now_seconds
            self._hand_on(folder)
        return folder

    def _hand_on(self, folder: SharedFolder) -> None:
        equipment = folder.version(EQUIPMENT)
        names = [SAMPLE] if equipment in (None, self._equipment) else [EQUIPMENT, SAMPLE]
        self._equipment = equipment
        for name in names:
            if content := folder.read(name):
                try:
                    self._take(content)
                except Exception as error:  # noqa: BLE001 - whatever others do with it: it is said
                    self._tell(f"a sample of this node: {error!r}")

    def _keep_sampled(self, folder: SharedFolder, now_seconds: float) -> None:
        """Be the one who samples if nobody is; replace a sampler of ours that does not do it."""
        if self._sampler is None:
            if now_seconds >= self._retry_at_seconds:
                lock = folder.try_to_lock()
                if lock is not None:
                    self._start_sampler(folder, lock)
                    self._heard_at_seconds = now_seconds
            return
        code = self._sampler.poll()
        is_hanging = now_seconds - self._heard_at_seconds > self._hang_seconds
        if code is None and not is_hanging:
            return
        why = f"hangs for {self._hang_seconds:g} s" if code is None else self._last_words()
        self._end_sampler()
        if code != 0:  # 0: somebody has removed its folder
            self._retry_at_seconds = now_seconds + self._retry_seconds
            if code not in ASKED_TO_END:
                self._tell(f"the sampler of this node {why}")

    def _start_sampler(self, folder: SharedFolder, lock: int) -> None:
        root = str(Path(__file__).parents[3])
        known = os.environ.get("PYTHONPATH", "")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, known)))}
        try:
            # The lock lives as long as the sampler, not as long as we.
            self._sampler = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, folder.path, str(lock), str(os.getpid())],
                cwd="/",
                env=environment,
                pass_fds=(lock,),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        finally:
            os.close(lock)
        assert self._sampler.stderr is not None  # noqa: S101 - a pipe
        flags = fcntl.fcntl(self._sampler.stderr, fcntl.F_GETFL)
        fcntl.fcntl(self._sampler.stderr, fcntl.F_SETFL, flags | os.O_NONBLOCK)

    def _last_words(self) -> str:
        assert self._sampler is not None  # noqa: S101 - asked of one that has ended
        words = b""
        with suppress(OSError):
            words = os.read(self._sampler.stderr.fileno(), 2**16) if self._sampler.stderr else b""
        lines = words[-_MAX_ERROR_BYTES:].decode(errors="replace").strip().splitlines()
        return f"has ended: {lines[-1] if lines else f'exit code {self._sampler.returncode}'}"

    def _end_sampler(self) -> None:
        """The end of its input ends it; one that hangs in the kernel is not waited for."""
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        for pipe in (sampler.stdin, sampler.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            sampler.wait(END_SECONDS / 2)
            return
        sampler.kill()
        with suppress(subprocess.TimeoutExpired):
            sampler.wait(END_SECONDS / 2)

    def _tell(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            with suppress(Exception):
                self._say(words)
