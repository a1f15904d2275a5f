"""A Ray cluster on this machine, whose nodes may be lost as machines are.

Ray is no requirement of anything here: it comes from PyPI into a folder of the user's cache, once.
`python -m tests.kit.engines.ray_nodes FOLDER` is the process that has the cluster; `RayRig` talks
to it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.kit.checkout import python_path, variables
from tests.kit.engines.fetched_packages import fetched

VERSION = "2.60.0"
NICENESS = "RAY_worker_niceness"
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_register_timeout_seconds": "300",  # instead of 60: a busy machine takes its time
}


def packages() -> Path:
    """The folder with Ray and what it needs; made if it is not there, which takes a minute.

    Raises:
        subprocess.CalledProcessError: It cannot be had.
    """
    return fetched("ray", VERSION)


def environment(**more: str) -> dict[str, str]:
    """That of a process which finds Ray beside this environment's packages."""
    path = os.pathsep.join([python_path(), str(packages())])
    return variables(**(SETTINGS | {"PYTHONPATH": path} | more))


class RayRig:
    """A cluster of Ray: a head without CPUs, and nodes that are added.

    Args:
        folder: In which its processes work; what they print is there.
        niceness: Of what Ray starts on a node; None: what Ray itself takes, 15.

    Attributes:
        address: As `ray.init` takes it.
        environment: Of the processes on its machine.
    """

    def __init__(self, folder: Path, *, niceness: int | None = 0) -> None:
        folder.mkdir(parents=True)
        self.environment = environment()
        if niceness is not None:
            self.environment[NICENESS] = str(niceness)
        self._scratch = tempfile.mkdtemp(prefix="ray-")  # short: it has names of sockets
        self.environment["RAY_TMPDIR"] = self._scratch  # it notes its newest cluster there
        (Path(self._scratch) / "ray").mkdir()
        with (folder / "rig.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.engines.ray_nodes", self._scratch],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.address: str = self._answer()

    def add(self, name: str, num_cpus: int = 2) -> str:
        """A further node; gives Ray's id of it."""
        return str(self._ask("add", name, num_cpus))

    def kill(self, name: str) -> int:
        """Kill all processes of a node at once; gives how many."""
        return int(self._ask("kill", name))

    def kill_actors(self, name: str) -> int:
        """Kill the actors on a node, and nothing else; gives how many."""
        return int(self._ask("kill_actors", name))

    def ours(self) -> list[str]:
        """The command lines of hetero_hvd's processes on all nodes."""
        return list(self._ask("ours"))

    def close(self) -> None:
        """End all nodes with everything on them."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _ask(self, *words: object) -> Any:  # noqa: ANN401 - as the question is
        if (pipe := self._process.stdin) is None:
            raise RuntimeError("the rig has no input")
        pipe.write(json.dumps(words) + "\n")
        pipe.flush()
        return self._answer()

    def _answer(self) -> Any:  # noqa: ANN401 - as the question was
        output = self._process.stdout
        line = output.readline() if output is not None else ""
        if not line:
            raise RuntimeError("the Ray cluster of the test has ended; see rig.txt")
        return json.loads(line)


class _Nodes:
    """The cluster, in the process that has it."""

    def __init__(self, scratch: str) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - beside this environment

        self._scratch = scratch
        head = {"num_cpus": 0, "node_name": "head"} | self._shared
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}

    @property
    def _shared(self) -> dict[str, Any]:
        return {"include_dashboard": False, "temp_dir": self._scratch}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, num_cpus: int) -> str:
        node = self._cluster.add_node(
            wait=False, num_cpus=num_cpus, node_name=name, temp_dir=self._scratch
        )
        self._nodes[name] = node
        return str(node.node_id)

    def kill(self, name: str) -> int:
        raylet = self._raylet(name)
        return self._killed([*self._below(raylet), raylet])

    def kill_actors(self, name: str) -> int:
        children = self._raylet(name).children()
        actors = [p for p in children if "ray::NodeActor" in " ".join(_words(p))]
        return self._killed(actors)

    def ours(self) -> list[str]:
        found = [p for name in self._nodes for p in self._below(self._raylet(name))]
        return [" ".join(words) for p in found if "hetero_hvd." in " ".join(words := _words(p))]

    def _raylet(self, name: str) -> Any:  # noqa: ANN401 - psutil.Process, which has no types there
        (started,) = self._nodes[name].all_processes["raylet"]
        return psutil.Process(started.process.pid)

    @staticmethod
    def _below(process: psutil.Process) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return process.children(recursive=True)
        return []

    @staticmethod
    def _killed(processes: list[psutil.Process]) -> int:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        return len(processes)


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.cmdline()
    return []


def main() -> None:
    """Have a cluster, and do what is asked until the input ends."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    nodes = _Nodes(sys.argv[1])
    output.write(json.dumps(nodes.address) + "\n")
    output.flush()
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        output.write(json.dumps(getattr(nodes, what)(*arguments)) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
