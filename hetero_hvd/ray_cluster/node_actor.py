"""What runs in an actor of Ray, one a node: it starts the agent there, and goes with it.

A plain class, which `cluster` makes an actor of: nothing here needs Ray.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.exit_codes import as_exit_code, exit_in_words
from hetero_hvd.ray_cluster.agent_program import AgentOrder, AgentPort

THREADS = "OMP_NUM_THREADS"
"""Ray sets it to the CPUs that an actor has asked for, and to 1 where it has not asked."""

HIDDEN_GPUS = "CUDA_VISIBLE_DEVICES"
"""Ray sets it to the GPUs that an actor has asked for; some versions leave it alone for none."""


class NodeActor:
    """Holds the agent of a node: when this process ends, in whatever way, the agent's input does.

    Args:
        key: The cluster key, as hexadecimal digits.
        num_threads: Of each worker; None: as many as its libraries take.
        has_gpus: Whether Ray has lent some.
    """

    def __init__(self, key: str, num_threads: int | None, *, has_gpus: bool) -> None:
        environment = dict(os.environ)
        environment.pop(THREADS, None)
        if num_threads is not None:
            environment[THREADS] = str(num_threads)
        if not has_gpus:
            environment[HIDDEN_GPUS] = ""
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "hetero_hvd.ray_cluster.agent_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # it ends its workers in order before it ends
        )
        assert self._agent.stdin is not None  # noqa: S101 - a pipe was asked for
        self._agent.stdin.write(msgspec.json.encode(AgentOrder(key=key)) + b"\n")
        self._agent.stdin.flush()

    def listening(self) -> tuple[int, str]:
        """The port of the agent, and the folder in which this process works.

        Raises:
            JobError: It has ended instead.
        """
        assert self._agent.stdout is not None  # noqa: S101 - a pipe was asked for
        line = self._agent.stdout.readline()
        if not line:
            raise JobError(f"the agent {exit_in_words(as_exit_code(self._agent.wait()))}")
        return msgspec.json.decode(line, type=AgentPort).port, str(Path.cwd())

    def ended(self) -> str:
        """Wait for the end of the agent; gives it in words."""
        return exit_in_words(as_exit_code(self._agent.wait()))
