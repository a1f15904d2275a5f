"""Jobs that train, on the Slurm of `slurm_cluster`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from tests.kit.engines.slurm_cluster import SlurmCluster

HEAD = "#!/bin/sh\n#SBATCH --no-kill --output=said.txt --open-mode=append\n"
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
GRANTED = r"Granted job allocation (\d+)"


def _command(options: Sequence[str], script: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "hetero_hvd", "run", "--slurm", *options, "--", *script]


class BatchJob:
    """One of sbatch.

    Args:
        slurm: The cluster.
        folder: Where it works.
        options: Of `hetero-hvd run`.
        nodes: Of the allocation, as options of sbatch.
        script: With its arguments.
        head: Of the batch script, in Latin-1.
        output: What it prints goes there; of an array with `%a` in the place of the task.

    Attributes:
        folder: As above.
        number: By which Slurm knows it.
        output: The path of what it prints.

    Raises:
        RuntimeError: Slurm does not take it.
    """

    def __init__(
        self,
        slurm: SlurmCluster,
        folder: Path,
        *options: str,
        nodes: Sequence[str],
        script: Sequence[str],
        head: str = HEAD,
        output: str = "said.txt",
    ) -> None:
        self.folder = folder
        self.output = folder / output
        self._slurm = slurm
        text = f"{head}exec {shlex.join(_command(options, script))}\n"
        (folder / "job.sh").write_text(text, encoding="latin-1")
        done = subprocess.run(
            ["sbatch", "--parsable", *nodes, "job.sh"],  # noqa: S607 - as users do
            cwd=folder,
            env=slurm.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.number = done.stdout.strip()

    def task(self, number: int) -> BatchJob:
        """One of the tasks of an array."""
        task = copy(self)
        task.number = f"{self.number}_{number}"
        task.output = self.output.with_name(self.output.name.replace("%a", str(number)))
        return task

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self.output.read_text() if self.output.exists() else ""

    def wait_for(self, pattern: str, seconds: float = 120.0) -> None:
        """Until it has printed it.

        Raises:
            TimeoutError: It has not.
        """
        try:
            self._slurm.wait_for(lambda: re.search(pattern, self.said), seconds)
        except TimeoutError:
            raise TimeoutError(f"no {pattern!r} in {self.folder}:\n{self.said[-4000:]}") from None

    def wait(self, seconds: float = 90.0) -> int:
        """Until it has ended; gives its exit code."""
        state: dict[str, str] = {}

        def has_ended() -> bool:
            state.update(self._slurm.job(self.number))
            return state["JobState"] in ENDED

        self._slurm.wait_for(has_ended, seconds)
        return int(state["ExitCode"].split(":")[0])

    def end(self) -> None:
        """Cancel it, and wait until it is gone."""
        self._slurm.end(self.number)

    def summary(self, output: str = "out") -> dict[str, Any]:
        """The summary file of an ended job."""
        found: dict[str, Any] = json.loads((self.folder / output / "summary.json").read_text())
        return found


class InSalloc(BatchJob):
    """One of salloc, with the driver where that was called; arguments are those of a `BatchJob`."""

    def __init__(
        self,
        slurm: SlurmCluster,
        folder: Path,
        *options: str,
        nodes: Sequence[str],
        script: Sequence[str],
    ) -> None:
        self.folder = folder
        self.output = folder / "said.txt"
        self._slurm = slurm
        words = ["salloc", "--no-kill", *nodes, *_command(options, script)]
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                words, cwd=folder, env=slurm.environment, stdout=output, stderr=output
            )
        self.wait_for(GRANTED)
        found = re.search(GRANTED, self.said)
        assert found is not None  # noqa: S101 - it was waited for
        self.number = found[1]

    def wait(self, seconds: float = 90.0) -> int:
        """Until it has ended; gives the driver's exit code."""
        return self._process.wait(seconds)

    def end(self) -> None:
        """Cancel it, and wait until the driver has ended too."""
        super().end()
        self.wait()
