"""Elastic state: what survives when workers are lost or join, and how all get equal again.

A step is applied only after all its reductions, so at any instant a survivor has applied exactly k
or k + 1. Nothing is rolled back: unless all replicas agree the most advanced is copied (`meet`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial

from hetero_hvd.errors import InvariantError, UserError, WorkerLostError
from hetero_hvd.messages import Finished, Leaving, Recovered
from hetero_hvd.messages.launch import WorkerLaunch
from hetero_hvd.probes.phase_clock import NO_PHASE
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.recovery.agreement import Agreement
from hetero_hvd.worker.recovery.checkpoints.keeping import Keeping
from hetero_hvd.worker.recovery.last_state import LastState
from hetero_hvd.worker.recovery.membership import WorkerMembership, meet
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.replica_check import Undecided, is_check_due
from hetero_hvd.worker.recovery.reports import (
    FRESH,
    Report,
    Workload,
    are_to_look,
    next_rendezvous_id,
    run_of,
)
from hetero_hvd.worker.recovery.step_application import StepApplication
from hetero_hvd.worker.recovery.watchdog import Watchdog
from hetero_hvd.worker.session.driver_client import Training
from hetero_hvd.worker.session.ending.last_words import exchange_last_words
from hetero_hvd.worker.session.whereabouts import waits_in
from hetero_hvd.worker.session.worker_context import WorkerContext, init
from hetero_hvd.worker.shards.members import PartsLost
from hetero_hvd.worker.shards.memory_pause import MemoryPause
from hetero_hvd.worker.step.passes import Passes
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.training_mode import TrainingMode
from hetero_hvd.worker.step.training_step import Course
from hetero_hvd.worker.timing.phase_ranges import wanted_ranges
from hetero_hvd.worker.timing.step_measurements import StepProfile
from hetero_hvd.worker.timing.step_times import StepTimes
from hetero_hvd.worker.timing.timing_exchange import RESET, STOP, TimingTable

logger = logging.getLogger(__name__)


class ElasticState:
    """This worker's replica and its membership in the job.

    Args:
        parts: Name to model, optimizer, scheduler, scaler: what must be equal on all workers.
        loader: For the global batch size and how far it loads ahead.
        passes: Tell the phase of the step that is under way, the memory and the micro-batches.
        pipeline: The steps that are taken and not applied yet.
        mode: How steps are taken.
        work: What is trained.
        launch: What this worker was told at its start.

    Attributes:
        replica: What must be equal on all workers.
        last_state: What is kept when the script leaves its loop.
        application: What the workers tell each other while a step is applied.
        times: Of the steps.
        work: As above; may be changed until `enter`.
    """

    def __init__(
        self,
        parts: dict[str, Stateful],
        loader: ShareLoader,
        passes: Passes,
        pipeline: Pipeline,
        *,
        mode: TrainingMode,
        work: Workload,
        launch: WorkerLaunch,
    ) -> None:
        clock = self._clock = passes.clock
        clock.ranges = wanted_ranges(launch.job, passes.device)
        sizing = self._sizing = passes.sizing
        self._pipeline = pipeline
        self._mode = mode
        self.work = work
        self.position = Position(order=loader.order)
        self.replica = Replica({**parts, "position": self.position})
        self._kept = Keeping(
            self.replica,
            self.position,
            loader.order,
            sizing,
            lambda: self.is_leader,
            settings=launch.checkpoints,
            tell=lambda message: self.context.tell(message),  # noqa: PLW0108 - it is known later
            wants_to_leave=lambda: self.context.leave_reason is not None,
            shards=mode.shards,
        )
        self._pause = MemoryPause(mode.shards, self, launch.job.elastic_timeout_seconds)
        self.last_state = LastState(self.replica)
        self._agreement = Agreement(self.replica, self.position, self._kept, self.last_state)
        again = partial(self._report, is_applying=True), self._restart
        self.application = StepApplication(self.position, self.last_state, *again, mode.shards)
        self._check_steps = launch.check_steps
        self._watchdog = Watchdog(clock, lambda: sizing.shape, launch.job.hang_timeout_seconds)
        self._loader = loader
        self._numerics = ""
        self._has_loaded = False
        self._context: WorkerContext | None = None
        self._membership: WorkerMembership | None = None
        self._timed_at = (0, math.nan)
        self.times = StepTimes(shares_vary=mode.shares_vary)
        self._profile = StepProfile(self._clock, launch.traces)
        pipeline.meanwhile = self._profile.look, sizing.look

    @property
    def context(self) -> WorkerContext:
        """This process in the job; admission happens at the first use."""
        self._context = self._context or init(progress=lambda: self.position.applied_steps)
        return self._context

    @property
    def membership(self) -> WorkerMembership:
        """The membership under way; UserError before `enter`."""
        if self._membership is None:
            raise UserError("batches() and evaluate() belong into the loop over trainer.epochs()")
        return self._membership

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 at the moment; waits for its admission."""
        return self.context.collective.rank == 0

    @property
    def num_workers(self) -> int:
        """Members at the moment; waits for this worker's admission."""
        members = self._membership
        return self.context.collective.size if members is None else len(members.workers)

    def check_not_begun(self, what: str) -> None:
        """Refuse what all workers have to know before they meet; raises UserError."""
        if self._membership is not None:
            raise UserError(f"{what}: must be called before trainer.epochs()")

    def begin_at(self, epoch: int, step_in_epoch: int, applied_steps: int) -> None:
        """The script has loaded the state after so many steps."""
        self.position.begin_at(epoch, step_in_epoch, applied_steps)
        self._has_loaded = True

    def enter(self) -> None:
        """Be admitted and consistent with the others, if this has not happened yet.

        Raises:
            JobError: The workers have started with different models, and may not.
        """
        if self._membership is None:  # from the admission on, those who train wait for this worker
            self._kept.prepare()
            self._agreement.begin()
        self._numerics = self._mode.numerics
        self.context.planner.use_grain(self._mode.grain or 1)  # a trainer before had its own
        self.last_state.checksum = ""
        if self.context.farewell is not None:
            self.context.farewell.begin(self.loop_left)
        watched = Training(
            phase=lambda: self._clock.current[0],  # in the channel's thread
            waits_in=partial(waits_in, threading.get_ident()),
            check=self._watchdog.end_if_overdue,
        )
        self.context.may_leave = lambda: self._kept.may_leave
        self.context.begin(lambda: self.position.applied_steps, watched)
        self.rejoin()
        if self._membership is None:
            self._meet(is_new=True, has_state=self._has_loaded)
            self._kept.check_found(is_found=self.membership.has_found_state)
            self.times.restart()
        if self._mode.needs_equal_models:
            self.membership.check_equal_start(self._mode.name)

    def rejoin(self) -> None:
        """Another trainer may have entered other memberships since this one has trained."""
        if self._membership and self._membership.rendezvous_id != self.context.rendezvous_id:
            self._meet()

    def shares_in_epoch(self, step_in_epoch: int) -> tuple[tuple[int, ...], int]:
        """The plan for a step of the epoch under way, and this worker's rank."""
        first = self.position.applied_steps - self.position.step_in_epoch
        return self.membership.shares_at(first + step_in_epoch), self.context.collective.rank

    @property
    def course(self) -> Course:
        """What decides which samples come next."""
        prefetch_steps = self.membership.prefetch_steps
        return Course(self.position, self.context.collective, self.shares_in_epoch, prefetch_steps)

    def recover(self, cause: str, reason: str) -> None:
        """Enter a new rendezvous and be consistent again; returns when training can go on.

        Args:
            cause: `fault` or `membership`.
            reason: In words, for the log.
        """
        logger.info("entering a new rendezvous: %s", reason)
        self._clock.current = ("rendezvous", time.perf_counter())
        self.context.collective.laps.begin()
        self._pipeline.suspend(self.context.collective)
        self.leave_if_due()
        self._agreement.begin()
        if not self.application.fault:  # else the others wait in the next rendezvous already
            self._restart()
        self._meet()
        self.context.tell(
            Recovered(
                worker=self.context.settings.worker,
                rendezvous_id=self.membership.rendezvous_id,
                cause=cause,
                seconds=time.perf_counter() - self.times.ended_at,
                broadcast=self.membership.consistency.broadcast,
                keeps_steps=bool(self.membership.consistency.kept_ranks),
                parts=self.context.collective.laps.parts,
            )
        )
        self._clock.current = NO_PHASE
        self.times.restart()  # what it took is no part of the next step

    def is_urgent(self, share: int, is_timed: bool) -> bool:
        """Whether the next exchange should not wait: this worker has changed, or has a new plan.

        Args:
            share: Samples of this worker in the step under way.
            is_timed: Whether its own time in it is known already.
        """
        if is_timed:
            step = self.position.applied_steps + self._pipeline.num_in_flight
            own = time.perf_counter() - self.times.ended_at - self._clock.waited_seconds
            self.times.look(share, own, self._clock.evaluation_seconds, planned=self._planned(step))
        if self.times.has_changed or not self.is_leader:
            return self.times.has_changed
        return self.membership.exchange.is_news(self.context.planner.newest())

    def step_taken(self, share: int, seconds: dict[str, float], is_urgent: bool) -> None:
        """Account for a step, and take part in the exchange when one is due.

        Args:
            share: Samples of this worker in the step.
            seconds: Time per phase of this worker in the step.
            is_urgent: Whether any worker wanted an exchange now.
        """
        if self.application.fault:
            self._kept.step_done()
            self.recover("fault", self.application.fault)
            return
        step = self.position.applied_steps + self._pipeline.num_in_flight - 1
        planned = self._planned(step)
        is_told = "forward" in seconds or share == 0  # by the device, just now; or it has nothing
        if is_told and not self._clock.is_immediate:
            own = sum(value for phase, value in seconds.items() if phase != "comm_wait")
            self.times.look(share, own, seconds.get("evaluation", 0.0), planned=planned)
        more = self._profile.step_applied(self.context, step, seconds)
        self.times.add(share, seconds, more | self._pipeline.state(), planned=planned)
        self._watchdog.learn(seconds)
        self._sizing.timed(share, seconds)
        self._kept.step_done()
        exchange = self.membership.exchange
        if is_urgent:
            exchange.hurry(step)
        try:
            self._kept.tend_parts(self.context.collective)
            self.leave_if_due()
            is_due = is_check_due(self.position, self._check_steps)
            if is_due and self._compare(f"at step {self.position.applied_steps}", "checksums"):
                self.times.forget()
            self._act_on(exchange.read_after(step, self._clock))
            if exchange is self.membership.exchange and exchange.is_due(step):
                flags = RESET * self.context.reset_requested + STOP * self.context.stop_requested
                newest = self.context.planner.newest() if self.is_leader else None
                self._timed_at = self.position.epoch, self.position.loss
                timing = self._sizing.measured(self.times.take())
                exchange.submit(step, timing, newest, flags, self.context.payload())
                self._act_on(exchange.read_after(step, self._clock))
        except Interrupted as fault:
            self.recover("fault", str(fault))

    def loop_left(self) -> tuple[str, str]:
        """The script takes no more steps; gives digest, if the state is kept, and arithmetic."""
        farewell = self.context.farewell
        is_kept = farewell is not None and (farewell.is_said or farewell.has_finished)
        if self._membership is not None and not is_kept:
            self.last_state.keep(self._drain, self._kept.begin)
        return self.last_state.checksum, self.work.arithmetic

    def _drain(self) -> None:
        try:
            with self.last_state.applying():
                self._pipeline.drain(self.context.collective)
        except Interrupted:  # not all have left; who goes on takes these steps anew
            self._pipeline.discard(self.context.collective)

    def evaluated(self, metrics: dict[str, float], *, is_keeper: bool) -> None:
        """Keep the state that has the best result, if it is for this worker to do so."""
        self._kept.evaluated(metrics, is_keeper=is_keeper)

    def leave_if_due(self) -> None:
        """End this process if it should go whatever the others do: its state is whole just now."""
        self.context.await_driver()
        if self.context.leaves_now:
            self.context.part()
            self.leave(str(self.context.leave_reason), self.context.leave_code)

    def _planned(self, step: int) -> int:
        return self.membership.shares_at(step)[self.context.collective.rank]

    def finish(self) -> bool:
        """All epochs are done: prove that all replicas are equal, and tell the driver.

        Returns:
            Whether it is so; if the membership changed under way, a member may not be as far.

        Raises:
            JobError: The replicas differ, and nobody can tell which is right.
        """
        try:
            self._tell_timings(self.membership.exchange.read())
            self._compare(f"after {self.position.applied_steps} steps", "finish")
            self._kept.keep_parts(self.context.collective)
        except Interrupted as fault:
            self.recover("fault", str(fault))
            return False
        self._kept.keep()
        worker, applied_steps = self.context.settings.worker, self.position.applied_steps
        checksum = self._agreement.checksum
        self._profile.finish(self.context, applied_steps - 1)
        self.context.tell(Finished(worker=worker, applied_steps=applied_steps, checksum=checksum))
        if self.context.client is None:
            exchange_last_words(self.context)
        return True

    def _compare(self, when: str, name: str) -> bool:
        return self._agreement.compare(self.context.collective, self.membership.members, when, name)

    def _tell_timings(self, table: TimingTable | None) -> None:
        if table is None:
            return
        self.context.heard(table.payloads)
        if self.is_leader:
            event = table.as_event(self.membership.rendezvous_id, *self._timed_at)
            self.context.planner.timed(event)

    def _act_on(self, table: TimingTable | None) -> None:
        if table is None:
            return
        self.membership.follow(table.plan, applied_steps=self.position.applied_steps)
        self._tell_timings(table)
        if table.stop or table.reset:
            self._pipeline.drain(self.context.collective)
        if table.stop:
            self._kept.keep_parts(self.context.collective)
            self.leave("the driver ends the job")
        if table.reset:
            self._kept.end_membership(self.context, self.membership.workers)
            self.recover("membership", "the driver wants another membership")

    def _restart(self) -> None:
        try:
            self.context.collective.restart()
        except WorkerLostError as error:
            self.leave_if_due()
            self.leave(str(error))

    def leave(self, reason: str, code: int = 0) -> None:
        """End this process quietly, as it was asked to; `finally` blocks of the script run."""
        logger.info("leaving: %s", reason)
        applied_steps, is_trusted = self.position.applied_steps, self.last_state.is_trusted
        is_writing = is_trusted and self._kept.will_keep
        self.context.tell(Leaving(applied_steps=applied_steps, is_writing=is_writing))
        if is_trusted:
            self._kept.keep()
        raise SystemExit(code)

    def _meet(self, *, is_new: bool = False, has_state: bool = True) -> None:
        context, collective = self.context, self.context.collective
        while True:
            try:
                report = partial(self._report, is_new=is_new, has_state=has_state)
                reports = self.application.reports(collective, report)
                if are_to_look(reports):
                    has_state |= self._kept.look()
                    continue
                # Stored at once: should this rendezvous break, its id must not be used again.
                context.agreed(next_rendezvous_id(reports), run_of(reports))
                try:
                    own = self.replica, reports, context.planner, self._kept.shards
                    self._membership = meet(collective, *own)
                    self.last_state.is_trusted = True
                    if self._pause.is_over(self._kept.keep_before_pause):
                        break
                    self._restart()
                except (Undecided, PartsLost) as why:
                    self._pipeline.go_on(())
                    has_state = self._agreement.fall_back(collective, why)
            except InvariantError:
                self.last_state.is_trusted = False
                raise
            except Interrupted as fault:
                logger.info("the rendezvous broke: %s", fault)
                self._restart()
        self.application.over()
        self._pipeline.go_on(self.membership.consistency.kept_ranks)
        self._agreement.reached(self.membership.consistency.checksum)
        context.reset_done(self.membership.workers)
        self.times.forget()

    def _report(
        self, *, is_new: bool = False, has_state: bool = True, is_applying: bool = False
    ) -> Report:
        has_state &= is_applying or not (self._kept.shards and self._kept.shards.is_torn)
        return Report(
            worker=self.context.settings.worker,
            applied_steps=self.position.applied_steps if has_state else FRESH,
            shards=self._kept.held_parts(self.context.settings.node, self.context.collective),
            is_new=is_new,
            has_looked=self._kept.has_looked,
            epoch=self.position.epoch,
            num_evaluations=len(self.position.evaluations),
            checksum="" if is_applying else self._agreement.take(),
            rendezvous_id=self.context.rendezvous_id,
            global_batch_size=self._loader.global_batch_size,
            capacity=self.context.settings.capacity,
            prefetch_steps=self._loader.prefetch_steps,
            agreed=self._agreement.checksum,
            order=self._loader.order,
            parts=self.replica.names,
            staleness_bound=self._pipeline.bound,
            numerics=self._numerics,
            mode=self._mode.name,
            work=self.work,
            micro_batch_size=self._sizing.largest,
            run=self.context.run,
            steps_on_batch=self.position.steps_on_batch,
            is_applying=is_applying,
            num_heard=self.application.num_heard,
            kept=self._pipeline.kept,
        )
