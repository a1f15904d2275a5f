"""What each worker is given on its way: who it is, where its driver is, where to keep state."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import socket
from pathlib import Path

from hetero_hvd.config import ClusterConfig, JobConfig
from hetero_hvd.config.job import traced_steps
from hetero_hvd.driver.network.endpoints import Endpoints
from hetero_hvd.driver.workers.credentials import Credentials
from hetero_hvd.driver.workers.launcher import launch_order
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.probes import horovod_build as horovod_notice

TRACES_FOLDER = "traces"
SLEEPS = "timeline-writer-sleeps"
"""The correction without which a timeline that may be started takes a core of rank 0 all the time:
a stock Horovod records one only where the user sets HOROVOD_TIMELINE."""


class WorkerLauncher:
    """Starts the process of a slot.

    Args:
        config: Of the job at its start.
        command: The user's command.
        credentials: The job's secrets.
        endpoints: Where the nodes reach the driver.
        output: Folder of the run; the workers keep their checkpoints there.
        resume: Folder of an earlier run to go on from.
    """

    def __init__(
        self,
        config: ClusterConfig,
        command: tuple[str, ...],
        credentials: Credentials,
        endpoints: Endpoints,
        *,
        output: Path,
        resume: Path | None,
    ) -> None:
        job = config.job
        self._command = command
        user, machine = _user(), socket.gethostname()
        self._job = f"{output.name[:40]} (process {os.getpid()} of {user[:20]}@{machine[:30]})"
        self._endpoints = endpoints
        checkpoints = {
            "folder": str(output.absolute() / "checkpoints"),
            "run": secrets.token_hex(4),
            "every_seconds": job.checkpoint_seconds,
            "keep": job.checkpoint_keep,
            "best": job.checkpoint_best or "",
            "resume": str(resume.absolute() / "checkpoints") if resume else "",
        }
        self._environment = {
            **credentials.environment,
            "HETERO_HVD_HANG_SECONDS": str(job.hang_timeout_seconds),
            "HETERO_HVD_REPRODUCIBLE": str(job.reproducible).lower(),
            "HETERO_HVD_GRAIN": str(job.grain),
            "HETERO_HVD_STALENESS_BOUND": str(job.staleness_bound),
            "HETERO_HVD_STALENESS_WARMUP_STEPS": str(job.staleness_warmup_steps),
            "HETERO_HVD_WAIT_FREE": str(job.wait_free).lower(),
            "HETERO_HVD_FINGERPRINTS": str(output.absolute() / "fingerprints.jsonl"),
            "HETERO_HVD_FINGERPRINT_STEPS": str(job.fingerprint_steps),
            "HETERO_HVD_LOG_FORMAT": job.log_format,
        }
        self._environment |= trace_environment(job, output)
        if job.reproducible:
            self._environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if job.checkpoint_seconds or job.checkpoint_best or resume:
            self._environment["HETERO_HVD_CHECKPOINTS"] = json.dumps(checkpoints)

    async def __call__(self, slot: Slot) -> WorkerProcess:
        """Start a worker.

        Raises:
            JobError: There is no way to its node.
            OSError: The interpreter or ssh is not there.
        """
        endpoint = await self._endpoints.towards(slot.node)
        identity = {
            "HETERO_HVD_DRIVER": f"{endpoint.address}:{endpoint.channel_port}",
            "HETERO_HVD_WORKER": str(slot.worker),
            "HETERO_HVD_HOST": slot.host,
        }
        if slot.memory.limit:
            identity["HETERO_HVD_MAX_MICRO_BATCH"] = str(slot.memory.limit)
        environment = self._environment | identity
        order = launch_order(slot.node, slot.worker.slot, self._command, environment)
        return await WorkerProcess.start(slot.node, order, slot.output, job=self._job)


def _user() -> str:
    """Who runs the driver; a number where the machine has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def trace_environment(job: JobConfig, output: Path) -> dict[str, str]:
    """Variables of every worker: where traces go, and the window that the job itself wants.

    Args:
        job: The job's settings.
        output: Folder of the run.
    """
    from_step, to_step = traced_steps(job.trace_steps)
    config = {
        "folder": str(output.absolute() / TRACES_FOLDER),
        "from_step": from_step,
        "to_step": to_step,
        "workers": job.trace_workers.split(",") if job.trace_workers else [],
        "timeline": job.trace_timeline,
    }
    variables = {"HETERO_HVD_TRACES": json.dumps(config)}
    if "HOROVOD_TIMELINE" not in os.environ and SLEEPS in horovod_notice.corrections():
        variables["HOROVOD_TIMELINE"] = "DYNAMIC"  # so that it can be started at any time
    return variables
