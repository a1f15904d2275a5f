"""What each worker is given on its way: who it is, where its driver is, where to keep state."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from hetero_hvd.config import ClusterConfig, JobConfig
from hetero_hvd.config.job import traced_steps
from hetero_hvd.config.setting import ENVIRONMENT_PREFIX
from hetero_hvd.config.variables import script_config
from hetero_hvd.core.numerics import cpu_capability
from hetero_hvd.driver.network.endpoints import Endpoints
from hetero_hvd.driver.workers.credentials import Credentials
from hetero_hvd.driver.workers.launch_order import launch_order
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.errors import JobError
from hetero_hvd.messages.launch import (
    WORKER_VARIABLE,
    CheckpointSettings,
    JobSettings,
    TraceSettings,
    TriedOptions,
    WorkerIdentity,
    WorkerLaunch,
)
from hetero_hvd.probes import horovod_build as horovod_notice
from hetero_hvd.run.records.earlier_run import CHECKPOINTS, EarlierRun, plain_place

TRACES_FOLDER = "traces"
SLEEPS = "timeline-writer-sleeps"
"""The correction without which a timeline that may be started takes a core of rank 0 all the time:
a stock Horovod records one only where the user sets HOROVOD_TIMELINE."""

MASTER_PORT = "29500"
"""The one that torchrun takes where none is given. Nobody listens there."""

GIVEN_VARIABLE = f"{ENVIRONMENT_PREFIX}TORCHRUN_VARIABLES"
"""Tells a worker that RANK and its like are to be read only: they describe no torch.distributed."""


class WorkerLauncher:
    """Starts the process of a slot.

    Args:
        config: Of the job at its start.
        command: The user's command.
        credentials: The job's secrets.
        endpoints: Where the nodes reach the driver.
        output: Folder of the run; the workers keep their checkpoints there.
        resume: The run to go on from; None: there is none.
        all_slots: Gives all slots of the job, as they are now.

    Attributes:
        tried: What a trial sets of the trainer's options.
    """

    def __init__(
        self,
        config: ClusterConfig,
        command: tuple[str, ...],
        credentials: Credentials,
        endpoints: Endpoints,
        *,
        output: Path,
        resume: EarlierRun | None,
        all_slots: Callable[[], Iterable[Slot]] = tuple,
    ) -> None:
        job = config.job
        self.tried = TriedOptions()
        self._all_slots = all_slots
        self._has_torchrun_variables = job.torchrun_variables
        self._command = command
        self._run = output.name
        user, machine = _user(), socket.gethostname()
        self._job = f"{output.name[:40]} (process {os.getpid()} of {user[:20]}@{machine[:30]})"
        self._endpoints = endpoints
        self._credentials = credentials
        self._environment = dict[str, str]()
        if job.training_mode == "reproducible":
            self._environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            self._environment |= cpu_capability.variables(job.cpu_capability)
        if "HOROVOD_TIMELINE" not in os.environ and SLEEPS in horovod_notice.corrections():
            self._environment["HOROVOD_TIMELINE"] = "DYNAMIC"  # it can be started at any time
        self._launch = WorkerLaunch(
            job=_followed(job),
            checkpoints=_checkpoints(job, output, resume),
            traces=_traces(job, output),
            fingerprints=str(output.absolute() / "fingerprints.jsonl"),
            check_steps=script_config(os.environ).check_steps,
        )

    async def __call__(self, slot: Slot) -> WorkerProcess:
        """Start a worker.

        Raises:
            JobError: There is no way to its node.
            OSError: The interpreter or ssh is not there.
        """
        endpoint = await self._endpoints.towards(slot.node)
        driver = (endpoint.address, endpoint.channel_port)
        launch = msgspec.structs.replace(
            self._launch,
            identity=WorkerIdentity(
                worker=slot.worker, host=slot.host, driver=driver, run=self._run
            ),
            max_micro_batch=slot.memory.limit,
            tried=self.tried,
        )
        environment = self._environment | {WORKER_VARIABLE: str(slot.worker)}
        environment |= self._credentials.for_worker(slot.host)
        if self._has_torchrun_variables:
            given = torchrun_variables(slot, self._all_slots(), endpoint.address)
            environment |= {n: v for n, v in given.items() if n not in slot.node.env}
        what = self._command, environment, launch
        holder = f"{slot.worker} of {self._job}"  # two nodes of one job may mean one device
        order = launch_order(slot.node, slot.worker.slot, *what, holder=holder)
        return await WorkerProcess.start(slot.node, order, slot.output, job=self._job)


def torchrun_variables(
    slot: Slot, all_slots: Iterable[Slot], driver_address: str
) -> dict[str, str]:
    """What torchrun would set in the environment of a worker, as it is now.

    Args:
        slot: Of the worker.
        all_slots: Of the job, this one among them.
        driver_address: Where the worker's node reaches the driver's machine.
    """
    slots = sorted(all_slots, key=lambda each: each.number)
    nodes = list(dict.fromkeys(each.worker.node for each in slots))
    first = slots[0].node
    return {
        "RANK": str(slot.number),
        "WORLD_SIZE": str(slots[-1].number + 1),
        "LOCAL_RANK": str(slot.worker.slot),
        "LOCAL_WORLD_SIZE": str(sum(each.worker.node == slot.worker.node for each in slots)),
        "GROUP_RANK": str(nodes.index(slot.worker.node)),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "MASTER_ADDR": driver_address if first.is_local else first.address or driver_address,
        "MASTER_PORT": MASTER_PORT,
        GIVEN_VARIABLE: "1",
    }


def _user() -> str:
    """Who runs the driver; a number where the machine has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _followed(job: JobConfig) -> JobSettings:
    """What the workers follow of the job's settings."""
    found = {name: getattr(job, name) for name in JobSettings.__struct_fields__}
    return msgspec.convert(found | {"mode": job.training_mode}, JobSettings)


def _checkpoints(
    job: JobConfig, output: Path, resume: EarlierRun | None
) -> CheckpointSettings | None:
    """Where the job keeps the state of its training; None: it does not.

    Raises:
        JobError: Another start of the run would not find what the one before it has kept.
    """
    if not (job.checkpoint_seconds or job.checkpoint_best or resume):
        return None
    same = resume.name if resume is not None else ""
    folder = job.checkpoint_url or str(output.absolute() / CHECKPOINTS)
    earlier = resume.checkpoints if resume is not None else ""
    if same and earlier and plain_place(earlier) != plain_place(folder):
        raise JobError(
            f"--resume auto: the newest checkpoint of this run is in {earlier}, and this start "
            f"would look and keep its own in {folder}: let checkpoint_url be as it was, or go on "
            f"from there with --resume {output}, or begin anew with another --output"
        )
    return CheckpointSettings(
        folder=folder,
        run=same or secrets.token_hex(4),
        job=same or output.absolute().name,
        goes_on=bool(same),
        every_seconds=job.checkpoint_seconds,
        keep=job.checkpoint_keep,
        best=job.checkpoint_best or "",
        resume="" if same else earlier,
        resume_runs=resume.runs if resume is not None else (),
        cpu_capability=cpu_capability.chosen(job.cpu_capability) or "native"
        if job.training_mode == "reproducible"
        else "",
    )


def _traces(job: JobConfig, output: Path) -> TraceSettings:
    """Where traces go, and the window that the job itself wants."""
    from_step, to_step = traced_steps(job.trace_steps)
    return TraceSettings(
        folder=str(output.absolute() / TRACES_FOLDER),
        from_step=from_step,
        to_step=to_step,
        workers=tuple(job.trace_workers.split(",")) if job.trace_workers else (),
        timeline=job.trace_timeline,
    )
