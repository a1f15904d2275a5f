"""Makes this process a worker: alone, under `horovodrun` (elastic or not), or under our driver."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch

from hetero_hvd.data.listing import opened_files
from hetero_hvd.errors import InvariantError, UserError, WorkerFault, WorkerLostError
from hetero_hvd.exit_codes import EXIT_CUT_OFF, EXIT_TERMINATED
from hetero_hvd.messages import (
    Finished,
    FromWorker,
    Leaving,
    Ready,
    SessionsWanted,
    WorkerId,
)
from hetero_hvd.messages.identity import RunIdentity
from hetero_hvd.probes.kernel.life_lock import hold_inherited
from hetero_hvd.probes.kernel.machine_identity import machine_identity
from hetero_hvd.worker.accelerator import own_device, uuid_of
from hetero_hvd.worker.comm.horovod import (
    Collective,
    HostUpdates,
    is_elastic,
    local_rank,
    open_collective,
    take_slot,
)
from hetero_hvd.worker.lead.recording import Recording
from hetero_hvd.worker.session.driver_client import DriverClient, Training
from hetero_hvd.worker.session.ending.quick_end import end_quickly
from hetero_hvd.worker.session.ending.sigterm import Sigterm
from hetero_hvd.worker.session.farewell import Farewell
from hetero_hvd.worker.session.json_logs import log_records
from hetero_hvd.worker.session.launch_settings import (
    LaunchSettings,
    read_launch_settings,
    unknown_variables,
)
from hetero_hvd.worker.session.phase_sessions import NobodyRecords, phase_sessions
from hetero_hvd.worker.session.plan_source import DriverPlanner, LeadPlanner, Planner
from hetero_hvd.worker.session.self_description import describe_device, software

logger = logging.getLogger(__name__)

REUNION_POLL_SECONDS = 0.05


class WorkerContext:
    """This process in the job, for as long as the process lives.

    Attributes:
        settings: What it was told at its start.
        client: The channel to our driver; None without one.
        recording: What records the run where there is no driver; None with one.
        farewell: How the driver hears of the end of the script; None without one.
        planner: Where plans come from; used on rank 0.
        may_leave: Asked whether others have all that this worker has.
        rendezvous_id: The last membership that this process was in; see `agreed`.
    """

    def __init__(self, settings: LaunchSettings, *, progress: Callable[[], int]) -> None:
        self.settings = settings
        self.client: DriverClient | None = None
        self.recording: Recording | None = None
        self.farewell: Farewell | None = None
        self.rendezvous_id = self._agreed_generation = 0
        self._updates: HostUpdates | None = None
        self._collective: Collective | None = None
        self._progress = progress
        self._sigterm = Sigterm()
        self.may_leave: Callable[[], bool] = lambda: True
        self._parting = threading.Lock()
        self._has_parted = False
        self._data = opened_files()  # later on, another worker's script may be somewhere else
        if settings.launch.job.log_format == "json":
            log_records(step=lambda: self._done() - 1, rendezvous_id=lambda: self.rendezvous_id)
        if settings.driver is not None:
            check_interface(settings)
            prove_health(device())
            self.client = DriverClient(
                settings,
                progress=self._done,
                introduction=self._introduction,
                on_void=self._cut,
                on_member_lost=self._member_lost,
                on_connected=phase_sessions.tell_again,
            )
            self.farewell = Farewell(
                self.client, settings.worker, progress=self._done, part=self._end_collective
            )
            self.farewell.prepare()
            phase_sessions.tell_through(self._wants_sessions)
            admission = self.client.wait_for_admission()
            hold_inherited(settings.life_lock)
            take_slot(admission.environment)
            self.rendezvous_id = admission.rendezvous_id
        self._collective = open_collective(is_unwanted=self._is_unwanted)
        if self.client is not None:
            self._sigterm.listen()
        self.collective.start()
        atexit.register(self.leave)
        if self.farewell is not None:
            self.farewell.await_end()
        if self.client is not None:
            self.planner: Planner = DriverPlanner(self.client)
        else:
            phase_sessions.tell_through(NobodyRecords())
            self.recording = Recording(settings.lead, settings.worker, progress=self._done)
            self.planner = LeadPlanner(self.recording)
            self.tell(self._ready())
            if is_elastic():
                self._updates = HostUpdates()
            if self.collective.rank == 0 and (problems := list(unknown_variables())):
                logger.warning("; ".join(problems))

    def _done(self) -> int:
        """Applied steps, of whichever training: another one may have begun meanwhile."""
        return self._progress()

    def _ready(self) -> Ready:
        """What this worker is, for the record."""
        identity = self.settings.launch.identity
        interface = self.settings.node.interface or ""
        return Ready(
            worker=identity.worker,
            host=identity.host,
            interface=interface,
            pid=os.getpid(),
            **self._introduction(),
        )

    def _introduction(self) -> dict[str, Any]:
        """What this worker is; fields of `Ready`."""
        own = device()
        return {
            "versions": software(own),
            "device": describe_device(own),
            "device_uuid": uuid_of(own),
            "machine_id": machine_identity(),
            "data": self._data,
        }

    def begin(self, progress: Callable[[], int], training: Training) -> None:
        """Another training begins, or the same one goes on.

        Args:
            progress: Gives the number of its applied steps.
            training: What the driver is told of it.
        """
        self._progress = progress
        if self.client is not None:
            self.client.watch(training)

    @property
    def collective(self) -> Collective:
        """The door to the other workers."""
        if self._collective is None:
            raise InvariantError("the other workers are reached only once this one is admitted")
        return self._collective

    @property
    def reset_requested(self) -> bool:
        """Whether the driver, ours or Horovod's, wants another membership."""
        if self.client is not None:
            return self.client.reset_requested
        return self._updates is not None and self._updates.pending

    @property
    def stop_requested(self) -> bool:
        """Whether our driver ends the job."""
        return self.client is not None and self.client.stop is not None

    @property
    def leave_reason(self) -> str | None:
        """Why this worker should leave after the step under way, whatever the others do."""
        if self._sigterm.has_come:
            return "SIGTERM"
        is_given_up = self.client is not None and self.client.is_given_up
        return "the driver is out of reach" if is_given_up else None

    @property
    def leaves_now(self) -> bool:
        """Whether it can do so: unless it has to, it first gives others what only it has."""
        return self.leave_reason is not None and (self.may_leave() or self.is_cut_off)

    @property
    def is_cut_off(self) -> bool:
        """Whether this worker must not train now: the driver may have replaced it."""
        return self.client is not None and self.client.is_cut_off

    def await_driver(self) -> None:
        """Block as long as this worker is cut off and need not leave."""
        while self.is_cut_off and self.leave_reason is None:
            time.sleep(REUNION_POLL_SECONDS)

    def _is_unwanted(self) -> bool:
        self.await_driver()
        return self.stop_requested or self.leaves_now

    @property
    def leave_code(self) -> int:
        """With which exit code: it tells the driver whether to start this worker again."""
        return EXIT_TERMINATED if self._sigterm.has_come else EXIT_CUT_OFF

    @property
    def run(self) -> RunIdentity:
        """Which run this is, as far as this process knows; nothing where a driver leads it."""
        return RunIdentity() if self.recording is None else self.recording.run

    def agreed(self, rendezvous_id: int, run: RunIdentity) -> None:
        """All members of the rendezvous under way have given it this id.

        Args:
            rendezvous_id: See there.
            run: The run that it belongs to.
        """
        self._agreed_generation = self.collective.generation
        self.rendezvous_id = rendezvous_id
        if self.recording is not None:
            self.recording.run = run

    def payload(self) -> bytes:
        """What the next exchange is to take along to who leads the run; mostly empty."""
        return b"" if self.recording is None else self.recording.payload()

    def heard(self, payloads: Sequence[bytes]) -> None:
        """What an exchange has taken along, in rank order."""
        if self.recording is not None:
            self.recording.heard(payloads)

    def _cut(self) -> None:
        """In the channel's thread: the driver is lost, and with it the membership."""
        if self._collective is not None:
            self._collective.cut()

    def _member_lost(self, rendezvous_id: int) -> None:
        """In the channel's thread; no more than a hint, as it may come too late."""
        if self._collective is None:
            return
        if rendezvous_id == self.rendezvous_id:
            self._collective.cut(self._agreed_generation)
        elif rendezvous_id > self.rendezvous_id or not rendezvous_id:
            self._collective.cut()

    def tell(self, message: FromWorker) -> None:
        """Tell the driver, or where there is none, who records the run."""
        if self.recording is not None:
            self.recording.tell(message)
        if self.client is None or self.farewell is None:
            return
        if isinstance(message, Finished):
            self.farewell.has_finished = True
        if isinstance(message, Leaving):
            self.farewell.is_said = True
        self.client.send(message)

    def _wants_sessions(self, names: tuple[str, ...], ago_seconds: float) -> bool:
        wanted = SessionsWanted(self.settings.worker, names, time.time(), ago_seconds)
        return self.client is not None and self.client.send(wanted)

    def reset_done(self, members: tuple[WorkerId, ...]) -> None:
        """A new membership is entered: what was asked for has been done.

        Args:
            members: In rank order.
        """
        if self.recording is not None:
            self.recording.met(members, self.collective.rank)
        if self.client is not None:
            self.client.reset_requested = False
        if self._updates is not None:
            self._updates.pending = False

    def part(self) -> None:
        """Let the others go on at once: what this process still has to do may take long."""
        self.collective.cut()

    def leave(self) -> None:
        """Close everything, once."""
        atexit.unregister(self.leave)
        if self.recording is not None:
            self.recording.end()
        self._end_collective()
        if self.client is not None:
            self.client.close()
        if self.recording is not None:
            self.recording.close()
        if self.leave_reason is not None or self.stop_requested:
            end_quickly()

    def _end_collective(self) -> None:
        with self._parting:
            if self._has_parted:
                return
            self._has_parted = True
            if self._collective is None:
                return
            if self.leave_reason is not None or self.is_cut_off:
                self._collective.cut()  # nobody may be there to agree on an orderly end
            self._collective.stop()


_contexts: list[WorkerContext] = []


def init(*, progress: Callable[[], int] = lambda: 0) -> WorkerContext:
    """Become a worker of the job, and wait until the driver admits this one; at once when alone.

    Everything slow that the script does (imports, building the model, reading the dataset's index)
    belongs before this call: a worker that joins a running job costs the others nothing until here.
    `Trainer` calls it when its loop starts. Calling it again gives the same one.

    Args:
        progress: Gives the number of applied steps, for the heartbeat.

    Raises:
        JobError: The environment is malformed, or Horovod is missing or does not start.
        WorkerFault: This worker's device computes wrongly.
        SystemExit: The driver does not want this worker any more: the process ends quietly.
    """
    if not _contexts:
        try:
            _contexts.append(WorkerContext(read_launch_settings(), progress=progress))
        except WorkerLostError as error:
            logger.info("leaving before training: %s", error)
            raise SystemExit(0) from error
    return _contexts[0]


def device() -> torch.device:
    """The device that this worker computes on.

    Under our driver each worker sees its own GPU only; under `horovodrun`
    the GPU with the worker's local rank is taken. Without a GPU: the CPU. Does not need `init`.
    """
    return own_device(local_rank())


def check_interface(settings: LaunchSettings) -> None:
    """See that there is the network interface of nodes.yaml: Horovod would look for it for ever.

    A label of an address (`eth0:1`) is the name of one for Gloo, though not for the kernel.

    Raises:
        UserError: There is none of that name.
    """
    wanted = settings.node.interface
    found = {name for _, name in socket.if_nameindex()} | psutil.net_if_addrs().keys()
    if wanted is not None and wanted not in found:
        raise UserError(
            f"interface: {wanted}: node {settings.worker.node} has no network interface of that "
            f"name; it has {', '.join(sorted(found))}"
        )


def prove_health(where: torch.device) -> None:
    """Compute something known on the device before the others count on it.

    Raises:
        WorkerFault: The device computes wrongly. (If it does not answer, torch raises its own.)
    """
    size = 128
    ones = torch.ones(size, size, device=where)
    if float((ones @ ones).sum()) != size**3:
        raise WorkerFault(f"{where} computes wrongly: a product of ones is not what it must be")
