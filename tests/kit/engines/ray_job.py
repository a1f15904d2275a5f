"""A job on the Ray cluster of `ray_nodes`, called on the machine of its head."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kit.engines.ray_nodes import RayRig


class RayJob:
    """One job.

    Args:
        rig: The cluster.
        folder: Where it works.
        options: Of `hetero-hvd run`.
        script: With its arguments.

    Attributes:
        folder: As above.
        process: The driver.
    """

    def __init__(self, rig: RayRig, folder: Path, *options: str, script: Sequence[str]) -> None:
        self.folder = folder
        words = ["-m", "hetero_hvd", "run", "--ray", rig.address, "--output", "out", *options]
        with (folder / "said.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *words, "--", *script],
                cwd=folder,
                env=rig.environment,
                stdout=output,
                stderr=output,
            )

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return (self.folder / "said.txt").read_text()

    def wait_for(self, pattern: str, seconds: float = 240.0) -> None:
        """Until it has printed it.

        Raises:
            TimeoutError: It has not, or has ended.
        """
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.said):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"no {pattern!r} in {self.folder}:\n{self.said[-4000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End the driver at once."""
        self.process.kill()
        self.process.wait()
