"""This process as a worker whose script trains by Horovod itself: its memberships and its steps."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec
import torch

from hetero_hvd.errors import UserError, WorkerLostError
from hetero_hvd.integrations.horovod.loop_clock import LoopClock
from hetero_hvd.integrations.horovod.step_bounds import StepBounds
from hetero_hvd.integrations.horovod.waiting import Waiting
from hetero_hvd.messages import Finished, Leaving, Recovered, StepsTimed, StepTiming
from hetero_hvd.messages.launch import SYNCHRONOUS, WorkerLaunch
from hetero_hvd.probes.phase_clock import NO_PHASE
from hetero_hvd.refusal import raised_in
from hetero_hvd.worker.comm.horovod import Interrupted, disagreement
from hetero_hvd.worker.micro_batch.memory_meter import MemoryMeter, device_memory_bytes
from hetero_hvd.worker.recovery.membership import Consistency, WorkerMembership, first_plan
from hetero_hvd.worker.recovery.reports import (
    Report,
    Workload,
    exchange_reports,
    next_rendezvous_id,
    run_of,
)
from hetero_hvd.worker.session.driver_client import Training
from hetero_hvd.worker.session.self_description import describe_device
from hetero_hvd.worker.session.worker_context import device, init
from hetero_hvd.worker.step.emulation import Emulation
from hetero_hvd.worker.timing.step_measurements import StepProfile
from hetero_hvd.worker.timing.step_times import StepTimes
from hetero_hvd.worker.timing.timing_exchange import STOP, TimingTable

logger = logging.getLogger(__name__)

MIGRATE = "docs/guide/migrate.md"

OWN_STATE = Consistency(broadcast=True, checksum="", num_fresh=0, num_new=0)
"""The script makes its replicas equal itself, by `state.sync()` or `broadcast_parameters`."""

LOST = (
    "a worker is gone, and outside of hvd.elastic.run the script has no state to go back to: put "
    "its loop into a function with @hvd.elastic.run, or train with hetero_hvd.Trainer: see "
    f"{MIGRATE}"
)


class PlainSession:
    """The training that a script does by Horovod itself.

    Args:
        hvd: The module `horovod.torch`, as the script has imported it.

    Attributes:
        applied_steps: Of the state that the script is in: a state that is restored has fewer.
        context: This process in the job; creating it waits for the admission.
        is_elastic: Whether the script is in a function of `hvd.elastic.run`.
        loop: The phases of the script's loop.
    """

    def __init__(self, hvd: Any) -> None:  # noqa: ANN401 - has no types
        self._hvd = hvd
        self.applied_steps = self._committed_steps = 0
        self._bounds = StepBounds()
        self._times = StepTimes()
        self._cause = ""
        self._state: Any = None
        self._script = describe_script()
        self._memory: MemoryMeter | None = None
        self._share = 0
        self.context = init(progress=lambda: self.applied_steps)
        launch = self.context.settings.launch
        self.loop = LoopClock(Emulation.of(launch.node.emulate, launch.identity.worker))
        self._profile = StepProfile(self.loop.clock, launch.traces)
        thread, waiting = threading.get_ident(), Waiting(hvd)
        training = Training(phase=self._phase, waits_in=lambda: waiting.waits_in(thread))
        self.context.begin(lambda: self.applied_steps, training)
        self._hook = sys.excepthook
        sys.excepthook = self._raised
        self._meet_until_met()

    # --- memberships --------------------------------------------------------------------------

    @property
    def is_elastic(self) -> bool:
        """See the class."""
        return self._state is not None

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 at the moment."""
        return self.context.collective.rank == 0

    def rejoin(self) -> None:
        """Leave this rendezvous and meet the members of the next one; in place of `hvd.init()`."""
        self.loop.clock.current = ("rendezvous", time.perf_counter())
        self.leave_if_due()
        self._restart()
        self._meet_until_met()
        self.loop.clock.current = NO_PHASE

    def _meet_until_met(self) -> None:
        while True:
            try:
                self._meet()
            except Interrupted as fault:
                logger.info("the rendezvous broke: %s", fault)
                self._restart()
            else:
                return

    def _meet(self) -> None:
        context = self.context
        report = Report(
            worker=context.settings.worker,
            applied_steps=self.applied_steps,
            epoch=self._epoch,
            num_evaluations=0,
            checksum="",
            rendezvous_id=context.rendezvous_id,
            global_batch_size=max(1, self._share) * context.collective.size,
            capacity=-1,
            prefetch_steps=0,
            work=Workload(
                model=self._script,
                device=describe_device(device(), context.settings.node.emulate),
                memory_bytes=device_memory_bytes(device()),
                shares_fixed=True,
            ),
        )
        reports = exchange_reports(context.collective, report)
        context.agreed(next_rendezvous_id(reports), run_of(reports))
        self.applied_steps = self._committed_steps = reports[0].applied_steps  # it sends its state
        plan = first_plan(context.collective, reports, context.planner)
        self._membership = WorkerMembership(context.collective, reports, OWN_STATE, plan)
        context.reset_done(self._membership.workers)
        self._times.forget()

    def _restart(self) -> None:
        try:
            self.context.collective.restart()
        except WorkerLostError as error:
            self.leave_if_due()
            self._leave(str(error))

    def leave_if_due(self) -> None:
        """End this process if it should go whatever the others do."""
        self.context.await_driver()
        if (reason := self.context.leave_reason) is not None:
            self.context.part()
            self._leave(reason, self.context.leave_code)

    def _leave(self, reason: str, code: int = 0) -> NoReturn:
        logger.info("leaving: %s", reason)
        self.context.tell(Leaving(applied_steps=self.applied_steps))
        raise SystemExit(code)

    # --- the script's elastic state -----------------------------------------------------------

    @property
    def _epoch(self) -> int:
        """By its usual name in a script's state; 0 where it has another one."""
        epoch = getattr(self._state, "epoch", 0)
        return epoch if isinstance(epoch, int) else 0

    def begin(self, state: Any) -> None:  # noqa: ANN401 - Horovod's
        """The script enters a function of `hvd.elastic.run`."""
        self._state = state
        if self.context.farewell is not None:
            self.context.farewell.begin(lambda: ("", ""))

    def end(self, error: BaseException | None) -> None:
        """It has left it.

        Args:
            error: By which; None: the function has returned.
        """
        self._state = None
        if error is None:
            self._profile.finish(self.context, self.applied_steps - 1)
            worker = self.context.settings.worker
            self.context.tell(
                Finished(worker=worker, applied_steps=self.applied_steps, checksum="")
            )

    def committed(self) -> None:
        """The state is kept, and is what the script goes back to."""
        self._committed_steps = self.applied_steps

    def restored(self, error: BaseException | None) -> None:
        """The script goes back to the state that it kept last.

        Args:
            error: Why.

        Raises:
            JobError: It would come again: the workers do not agree on what to reduce.
        """
        if error is not None and (told := disagreement(error)) is not None:
            raise told
        self._cause = "fault"
        self.applied_steps = self._committed_steps
        self.loop.forget()

    @property
    def is_reset_wanted(self) -> bool:
        """Whether the driver wants another membership."""
        return self.context.reset_requested

    def interrupted(self) -> None:
        """All workers go into another membership, with the states that they are in."""
        self._cause = "membership"

    def synchronized(self) -> None:
        """The state of all workers is the same."""
        if not self._cause:
            return
        self.context.tell(
            Recovered(
                worker=self.context.settings.worker,
                rendezvous_id=self._membership.rendezvous_id,
                cause=self._cause,
                seconds=time.perf_counter() - self._times.ended_at,
                broadcast=True,
            )
        )
        self._cause = ""
        self._times.ended_at = time.perf_counter()

    # --- steps --------------------------------------------------------------------------------

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has applied the sum of all gradients.

        Raises:
            HorovodInternalError: The rendezvous broke.
            SystemExit: This worker has to leave.
        """
        if not self._bounds.ends_step(optimizer):
            return
        if self._memory is None:
            where = optimizer.param_groups[0]["params"][0].device
            self.loop.measure_on(where)
            limit_bytes = self.context.settings.node.memory_limit_bytes
            self._memory = MemoryMeter(where, limit_bytes)
        step, self.applied_steps = self.applied_steps, self.applied_steps + 1
        share, seconds = self.loop.take()
        more = self._profile.step_applied(self.context, step, seconds)
        own = sum(value for phase, value in seconds.items() if phase != "comm_wait")
        self._times.look(share, own, 0.0, planned=self._share)
        self._times.add(share, seconds, more, planned=self._share)
        self._share = max(share, self._share)
        if not self.is_elastic:  # else at the next commit, when nothing is lost
            self.leave_if_due()
        try:
            self._exchange(step)
        except Interrupted as fault:
            raise self._hvd.HorovodInternalError(str(fault)) from fault

    def _exchange(self, step: int) -> None:
        exchange, context = self._membership.exchange, self.context
        table = exchange.read_after(step, self.loop.clock)
        if table is not None:
            self._act_on(table)
        if exchange.is_due(step):
            newest = context.planner.newest() if self.is_leader else None
            flags = STOP * context.stop_requested
            exchange.submit(step, self._timing(), newest, flags, context.payload())

    def _timing(self) -> StepTiming:
        """What the steps took since the last exchange."""
        timing = self._times.take()
        if self._memory is None:
            return timing
        use = self._memory.read()
        return msgspec.structs.replace(
            timing, memory_bytes=use.peak_bytes, memory_limit_bytes=use.limit_bytes
        )

    def _act_on(self, table: TimingTable) -> None:
        self._membership.follow(table.plan, applied_steps=self.applied_steps)
        if self.is_leader:
            self.context.planner.timed(
                StepsTimed(
                    rendezvous_id=self._membership.rendezvous_id,
                    step=table.step,
                    epoch=self._epoch,
                    loss=math.nan,
                    timings=table.timings,
                    exchange_seconds=table.blocked_seconds,
                )
            )
        if table.stop:
            self._leave("the driver ends the job")

    def _phase(self) -> str:
        """In the channel's thread."""
        return self.loop.clock.current[0]

    # --- errors -------------------------------------------------------------------------------

    def _raised(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """The script ends in an error; that a worker is gone is told in one line."""
        farewell = self.context.farewell
        if farewell is None or not issubclass(kind, self._hvd.HorovodInternalError):
            self._hook(kind, error, trace)
            return
        told = disagreement(error)
        if told is not None:
            self._hook(type(told), told, trace)
            return
        place = raised_in(trace)
        line = f"{LOST} ({place})" if place else LOST
        sys.stderr.write(f"{line}\n")
        farewell.give_up(line)


def describe_script() -> str:
    """What its speed depends on, as far as that is known before there is a model: all that it is.

    Returns:
        Its name, and a digest of its text and its arguments.
    """
    script = Path(sys.argv[0])
    digest = sha256("\0".join(sys.argv).encode(errors="surrogateescape"))
    with suppress(OSError):
        digest.update(script.read_bytes())
    return f"{script.name} {digest.hexdigest()[:16]}"


def check_launch(launch: WorkerLaunch) -> None:
    """See that the job asks for nothing that such a script cannot do.

    Raises:
        UserError: It does.
    """
    bound, kept = launch.job.staleness_bound, launch.checkpoints
    wanted = {
        f"mode: {launch.job.mode}": launch.job.mode != SYNCHRONOUS,
        f"staleness_bound: {bound}": bound > 0,
        "checkpoint_best": kept is not None and bool(kept.best),
        "--resume": kept is not None and bool(kept.resume),
        "benchmark": launch.benchmark is not None,
    }
    if (limit := launch.node.max_local_batch_size) is not None:
        logger.warning("max_local_batch_size: %d: the script divides its data itself", limit)
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise UserError(
                f"{name}: not for a script that trains by Horovod itself: take it out, or train "
                f"with hetero_hvd.Trainer: see {MIGRATE}"
            )
