"""The loss of the batch host, where the driver is, does not end a job with --no-kill: it idles.

So a step on another node of the allocation listens to the driver; see `watch_program`.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.registry import python_of
from hetero_hvd.driver.workers.launchers.srun import srun_vector
from hetero_hvd.slurm.watch_program import END

logger = logging.getLogger(__name__)

BEATS = 6
"""Signs of life in the time of silence after which Slurm is asked."""

END_SECONDS, RETRY_SECONDS = 3.0, 10.0


class DriverWatch:
    """Has the step, and another one when its node is lost; does nothing without another node.

    Args:
        nodes: Where it may run: not on the driver's own.
        label: What to requeue.
        host: The driver's node, as Slurm calls it.
        silence_seconds: After which Slurm is asked whether that is lost.
    """

    def __init__(
        self, nodes: Sequence[NodeConfig], label: str, host: str, *, silence_seconds: float
    ) -> None:
        self._nodes = tuple(nodes)
        program = ("-m", "hetero_hvd.slurm.watch_program")
        self._words = (*program, label, host, f"{silence_seconds:g}")
        self._beat_seconds = silence_seconds / BEATS
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="driver watch", daemon=True)

    def start(self) -> None:
        """From now on."""
        if self._nodes:
            self._thread.start()

    def close(self) -> None:
        """The job is over; whatever becomes of this process, it is not requeued."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    def _keep(self) -> None:
        for node in itertools.cycle(self._nodes):
            try:
                self._watched_by(node)
            except OSError as error:
                logger.warning("%s: does not watch the driver: %s", node.name, error)
            if self._is_over.wait(RETRY_SECONDS):
                return

    def _watched_by(self, node: NodeConfig) -> None:
        """Until the job is over, or the node lost."""
        process = subprocess.Popen(
            srun_vector(node, [python_of(node), *self._words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with process.stdin as steps_input, suppress(BrokenPipeError):
            while process.poll() is None:
                is_over = self._is_over.wait(self._beat_seconds)
                steps_input.write(END if is_over else b"\n")
                if is_over:
                    break
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
            return
        process.kill()
        process.wait()
