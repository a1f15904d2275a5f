"""The folders of the jobs, and what each of them is to run.

A job's folder belongs to its user. Its nodes.yaml does not: the hub alone writes it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Container
from pathlib import Path

from hetero_hvd.discovery.submission.job_settings import as_flag
from hetero_hvd.hub.queue.job_process import JobProcess, JobStart
from hetero_hvd.hub.queue.queue_store import KeptJob

logger = logging.getLogger(__name__)

FOLDER_MODE = 0o711
"""Its user has to get through to what is his."""

DEVICE_WAIT_SECONDS = 3600
"""A job's devices are its own as soon as who had them before has left."""

COMMAND_JOB = "hetero_hvd.driver.queued.command_job"


class JobFiles:
    """All of them.

    Args:
        folder: For all; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._jobs = folder.absolute() / "jobs"
        self._nodes = folder.absolute() / "nodes"
        for each in (folder, self._jobs, self._nodes):
            each.mkdir(mode=FOLDER_MODE, exist_ok=True)
        self._written: dict[str, bytes] = {}

    def folder_of(self, name: str) -> Path:
        """Of a job."""
        return self._jobs / name

    def run_of(self, name: str) -> Path:
        """Folder of a job's run, the same through all its starts."""
        return self.folder_of(name) / f"job-{name}"

    def note_of(self, name: str) -> Path:
        """File of the hub's own in which a job's newest start is noted."""
        return self._nodes / f"{name}.start"

    def remove(self, name: str) -> None:
        """Delete all of a job."""
        shutil.rmtree(self.folder_of(name), ignore_errors=True)
        for path in (self._nodes / f"{name}.yaml", self.note_of(name)):
            path.unlink(missing_ok=True)
        self._written.pop(name, None)

    def remove_unknown(self, known: Container[str]) -> None:
        """Delete what was left of a job that a crash kept from being taken in.

        One that has run stays: somebody wants its results, and has put back an older database.
        """
        for folder in list(self._jobs.iterdir()):
            if folder.name not in known and not any(folder.glob("attempt-*")):
                self.remove(folder.name)
            elif folder.name not in known:
                logger.warning("%s is of a job that queue.sqlite does not know", folder)

    @property
    def last_number(self) -> int:
        """The highest of a job that has a folder; 0: there is none."""
        names = [each.name for each in self._jobs.iterdir()]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)

    def write_nodes(self, name: str, content: bytes, process: JobProcess) -> None:
        """Have a job's nodes.yaml say this, in one piece.

        Raises:
            OSError: The disk does not take it.
            UserError: The machine does not know its user any more.
        """
        if self._written.get(name) == content:
            return
        user = process.user
        path = self._nodes / f"{name}.yaml"
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        mode = 0o600 if user is None else 0o640
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if user is not None:
                os.fchown(descriptor, -1, user.gid)
        new.replace(path)
        self._written[name] = content

    def order(self, kept: KeptJob) -> JobStart:
        """What to run: `hetero-hvd run`, which goes on from its newest checkpoint, or a command."""
        name = str(kept.number)
        submission = kept.submission
        nodes, output = str(self._nodes / f"{name}.yaml"), str(self.run_of(name))
        words = [submission.python, "-m"]
        if submission.is_command:
            words += [COMMAND_JOB, nodes, output, str(DEVICE_WAIT_SECONDS)]
        else:
            words += ["hetero_hvd", "run", "--nodes-file", nodes]
            words += ["--output", output, "--resume", "auto"]
            words += [f"--device-wait-seconds={DEVICE_WAIT_SECONDS}"]
            words += map(as_flag, submission.settings.items())
        return JobStart(
            python=submission.python,
            command=[*words, "--", *submission.command],
            environment=submission.environment,
            tree=submission.tree,
        )
