"""A job run by the command line, and a check that it leaves nothing behind."""

import asyncio
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.kit.engines.slurm_cluster import slurm_cluster, why_not
from tests.leftovers import processes_of, wait_until

SCRIPT = Path(__file__).with_name("train.py")
NODES = ("alpha", "beta", "gamma")


def write_nodes(path, names=NODES, **settings):
    """A nodes.yaml with one local CPU slot for each name."""
    lines = ["job:", *(f"  {key}: {json.dumps(value)}" for key, value in settings.items())]
    lines += ["nodes:", *(f"  - {{name: {name}, slots: 1, devices: []}}" for name in names)]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n")
    fresh.replace(path)


async def until(condition):
    """Wait for a condition that no event tells about, in a loop that must go on."""
    while not condition():  # noqa: ASYNC110 - a process's state has no event
        await asyncio.sleep(0.01)


class Job:
    """A running `hetero-hvd run`."""

    def __init__(self, folder, *arguments, command=None):
        self.folder = folder
        self.nodes_file = folder / "nodes.yaml"
        self.output = []
        vector = [sys.executable, "-m", "hetero_hvd", "run", "--output", "out", *arguments]
        self.process = subprocess.Popen(
            [*vector, "--", *command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self._url = self.wait_for(r"status: (\S+)")[1]
        except AssertionError:
            self.close()  # else its workers would hold the slots of the tests that follow
            raise

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, pattern, seconds=40.0):
        """The first new line of output that matches."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no {pattern!r} in:\n" + "\n".join(self.output)
            self.output.append(line)
            if match := re.search(pattern, line):
                return match

    def wait(self, seconds=100.0):
        """The exit code."""
        code = self.process.wait(timeout=seconds)
        self._reader.join()
        while (line := self._lines.get()) is not None:
            self.output.append(line)
        return code

    def status(self):
        """What the driver says of itself."""
        with urllib.request.urlopen(self._url, timeout=5) as answer:  # noqa: S310 - our own
            return json.load(answer)

    def pid_of(self, worker):
        """Process id of a worker."""
        return self.status()["workers"][worker]["pid"]

    def summary(self):
        """The summary file of an ended job."""
        return json.loads((self.folder / "out" / "summary.json").read_text())

    def close(self):
        """End it, whatever state it is in."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def slurm():
    """A Slurm of four nodes on this machine; who has a node fail there, calls `set_up`."""
    if why := why_not():
        pytest.skip(why)
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,  # short, for its sockets
        slurm_cluster(Path(folder)) as cluster,
    ):
        yield cluster


@pytest.fixture
def start_job(tmp_path):
    """Starts jobs; at the end, none of their processes may be left."""
    jobs = []

    def start(*arguments, names=NODES, command=None, script=("5",), **settings):
        write_nodes(tmp_path / "nodes.yaml", names, **settings)
        job = Job(tmp_path, *arguments, command=command or (str(SCRIPT), *script))
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.close()
    wait_until(lambda: not processes_of(tmp_path), 8, "the end of all processes")
