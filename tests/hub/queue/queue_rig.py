"""A hub with a queue that can be killed, jobs that prove what they have trained, and their ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from hetero_hvd.discovery.submission.queue_client import order, submit
from hetero_hvd.discovery.submission.queue_link import QueueOrder
from hetero_hvd.errors import TryAgainError
from tests.kit.checkout import variables
from tests.kit.fault_job import SCRIPT, trace_in
from tests.kit.processes import is_running

KEY = bytes(range(32))
TWO = [
    {"name": "alpha", "devices": [], "emulate": {"seconds_per_sample": 1e-5}},
    {"name": "beta", "devices": [], "emulate": {"seconds_per_sample": 1e-5}},
]
SLOW = 120.0
"""For whatever has to come on a machine that others use, too."""


def until(condition, what, seconds=SLOW):
    """Wait for a condition; `what` gives what to say if it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


class QueueHub:
    """`hetero-hvd hub --queue` in a folder, and what is ordered of it.

    Args:
        folder: For all of it.
        nodes: Entries of its nodes.yaml.
        words: Further words of the command.
        more: Further sections of its nodes.yaml.
    """

    def __init__(self, folder, nodes=TWO, words=(), **more):
        self.folder = folder
        self.socket = folder / "hub" / "queue.sock"
        self.words = words
        self.process = None
        (folder / "cluster.key").write_text(KEY.hex())
        (folder / "cluster.key").chmod(0o600)
        (folder / "cluster.yaml").write_text(json.dumps({"nodes": nodes, **more}))
        (folder / "tree").mkdir()
        shutil.copy(SCRIPT, folder / "tree" / "train.py")

    def start(self):
        """Start one, and wait until it takes orders."""
        self.socket.unlink(missing_ok=True)
        self.begin()
        until(self.answers, lambda: "no queue")

    def begin(self):
        """Start one."""
        with (self.folder / "hub.log").open("ab") as log:
            command = [sys.executable, "-m", "hetero_hvd", "hub", "--queue", "cluster.yaml"]
            self.process = subprocess.Popen(
                [*command, "--port", "0", "--address", "127.0.0.1", *self.words],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=variables(),
            )

    def answers(self):
        """Whether it takes orders; a hub that has ended never does."""
        assert self.process.poll() is None, (self.folder / "hub.log").read_text()
        with suppress(TryAgainError):
            return bool(self.order("list"))
        return False

    def kill(self):
        """End it at once, in whatever it is doing."""
        self.process.kill()
        self.process.wait()

    def order(self, name, **more):
        """Have something done."""
        return order(QueueOrder(name=name, **more), socket_path=self.socket)

    def submit(self, name, *, script=None, **more):
        """Give it a job that proves in a folder of its own what it has trained."""
        (self.folder / name).mkdir()
        fields = json.dumps({"folder": str(self.folder / name), **(script or {})})
        before = Path.cwd()
        os.chdir(self.folder / "tree")
        try:
            return submit(["train.py", fields], socket_path=self.socket, **more)
        finally:
            os.chdir(before)

    def job(self, number):
        """What is listed of a job."""
        return next(each for each in self.order("list")["jobs"] if each["job"] == number)

    def log_of(self, number):
        """What a job has printed."""
        path = self.folder / "hub" / "queue" / "jobs" / str(number) / "log.txt"
        return path.read_text() if path.exists() else ""

    def wait_for_step(self, name, step, number=None):
        """Until a job has applied so many steps."""
        until(
            lambda: max((line[1] for line in trace_in(self.folder / name)), default=0) >= step,
            lambda: f"step {step} of {name}: {self.log_of(number)}",
        )

    def wait_for_text(self, number, text):
        """Until a job has printed it."""
        until(lambda: text in self.log_of(number), lambda: self.log_of(number))

    def wait_for_end(self, number):
        """Until a job has ended, and those before it; gives how."""
        until(lambda: self.job(number)["state"] == "ended", lambda: self.log_of(number), 600)
        return self.job(number)["why"]

    def runners(self):
        """Processes of jobs, by what they have left."""
        marks = (self.folder / "hub" / "queue" / "jobs").glob("*/attempt-*.json")
        pids = {mark: json.loads(mark.read_text())["pid"] for mark in marks}
        return {mark: pid for mark, pid in pids.items() if is_running(pid)}

    def close(self):
        """End the hub and all jobs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.kill()
        for pid in self.runners().values():
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while self.runners() and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in self.runners().values():
            os.kill(pid, signal.SIGKILL)
