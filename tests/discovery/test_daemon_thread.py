"""Calls that may hang, in threads that nobody waits for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from hetero_hvd.discovery.daemon_thread import in_daemon_thread


def test_result_and_error_come_to_the_loop():
    """As those of a call do."""

    async def act():
        assert await in_daemon_thread(lambda: 5) == 5
        with pytest.raises(ValueError, match="bad"):
            await in_daemon_thread(lambda: int("bad"))

    asyncio.run(act())


def test_nobody_waits_for_one_that_hangs():
    """Neither who gave up, nor the loop's end; a result that comes later disturbs nobody."""
    gate, threads = threading.Event(), []

    def hang():
        threads.append(threading.current_thread())
        gate.wait()

    async def act():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_daemon_thread(hang), 0.05)

    asyncio.run(act())
    gate.set()
    (thread,) = threads
    thread.join(10)
    assert not thread.is_alive()


def test_a_process_ends_beside_one_that_hangs():
    """For good."""
    program = (
        "import asyncio, threading\n"
        "from hetero_hvd.discovery.daemon_thread import in_daemon_thread\n"
        "async def act(): in_daemon_thread(threading.Event().wait)\n"
        "asyncio.run(act())\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


def test_a_machine_without_threads_is_an_error_of_the_call(monkeypatch):
    """As of any other call of the system; it ends nobody."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    async def act():
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            await in_daemon_thread(lambda: 5)
        monkeypatch.undo()

    asyncio.run(act())
