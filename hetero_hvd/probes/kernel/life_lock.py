"""A lock by which one process learns at once that another one dies, however that happens.

The kernel gives up a robust mutex of a thread that ends before it frees the memory of its process.
That takes 20 ms for a small model and tenths of a second for a large one, and only then do its
connections end and does its parent hear of it. See `pthread_mutexattr_setrobust(3)` and the
kernel's `Documentation/locking/robust-futexes.rst`. Standard library only: a supervisor costs
little.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

LIFE_LOCK_VARIABLE = "HETERO_HVD_LIFE_LOCK"

SHARED, ROBUST = 1, 1
"""PTHREAD_PROCESS_SHARED and PTHREAD_MUTEX_ROBUST, in glibc and in musl."""

LARGEST_BYTES = 128
"""More than a `pthread_mutex_t` or its attributes have anywhere (glibc: 40, musl: 40)."""

POLL_SECONDS = 0.1
"""Between two looks at whether the lock is held for the first time."""


class LifeLock:
    """A robust mutex in memory that both processes share.

    Args:
        descriptor: Of that memory.

    Raises:
        OSError: It is none, or of another size.
        ValueError: The same.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._mutex = ctypes.byref((ctypes.c_char * LARGEST_BYTES).from_buffer(self._memory))
        self._libc = ctypes.CDLL(None)

    def initialize(self) -> None:
        """Make it one that nobody holds.

        Raises:
            OSError: This system has none such.
            AttributeError: The same.
        """
        attributes = ctypes.create_string_buffer(LARGEST_BYTES)
        for code in (
            self._libc.pthread_mutexattr_init(attributes),
            self._libc.pthread_mutexattr_setpshared(attributes, SHARED),
            self._libc.pthread_mutexattr_setrobust(attributes, ROBUST),
            self._libc.pthread_mutex_init(self._mutex, attributes),
        ):
            if code:
                raise OSError(code, os.strerror(code))

    def hold(self) -> bool:
        """Hold it as long as this process lives; whether it does.

        The thread that holds it must live as long as the process, which only the main thread does.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        return self._libc.pthread_mutex_lock(self._mutex) in {0, errno.EOWNERDEAD}

    def wait_for_death(self) -> bool:
        """Until a process that holds it dies, which need not hold it yet; whether that was it."""
        while not (code := self._libc.pthread_mutex_trylock(self._mutex)):
            self._libc.pthread_mutex_unlock(self._mutex)
            time.sleep(POLL_SECONDS)
        if code == errno.EBUSY:
            code = self._libc.pthread_mutex_lock(self._mutex)
        return bool(code == errno.EOWNERDEAD)


class GivenLifeLock:
    """One that a process which is about to start is to hold; none where this system has none.

    Args:
        lock: It; None: there is none.
        descriptors: Of it, for that process to inherit.
    """

    def __init__(self, lock: LifeLock | None, descriptors: Sequence[int]) -> None:
        self._lock = lock
        self.descriptors = descriptors

    def watch(self, on_death: Callable[[], None]) -> None:
        """The process has started: call this in a thread when it dies."""
        if (lock := self._lock) is None:
            return
        for descriptor in self.descriptors:
            os.close(descriptor)

        def wait() -> None:
            if lock.wait_for_death():
                on_death()

        threading.Thread(target=wait, daemon=True).start()


def give_life_lock(environment: dict[str, str]) -> GivenLifeLock:
    """One for a process that is started with this environment and its descriptors."""
    environment[LIFE_LOCK_VARIABLE] = ""  # this process may have been given one itself
    with ExitStack() as stack:
        try:
            descriptor = os.memfd_create("hetero-hvd-life-lock")
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, mmap.PAGESIZE)
            lock = LifeLock(descriptor)
            lock.initialize()
        except (OSError, AttributeError):  # the end is noticed in any case, but later
            return GivenLifeLock(None, ())
        stack.pop_all()
    environment[LIFE_LOCK_VARIABLE] = f"{descriptor}:{_identity(descriptor)}"
    return GivenLifeLock(lock, (descriptor,))


def _identity(descriptor: int) -> str:
    """Of the file behind it: a number alone may be another file's by now.

    Raises:
        OSError: There is none.
    """
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def hold_inherited(text: str) -> bool:
    """Hold the lock of the process that has started this one; whether there is one.

    Args:
        text: As `LIFE_LOCK_VARIABLE` has it.
    """
    number, _, identity = text.partition(":")
    try:
        if identity != _identity(descriptor := int(number)):
            return False  # a program in between has closed it
        lock = LifeLock(descriptor)
        os.close(descriptor)
    except (OSError, ValueError, OverflowError):
        return False
    if is_held := lock.hold():
        _held.append(lock)
    return is_held


def is_held() -> bool:
    """Whether this process holds one."""
    return bool(_held)


_held: list[LifeLock] = []
"""Their memory stays."""
