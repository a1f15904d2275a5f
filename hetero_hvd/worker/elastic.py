"""Elastic state: what survives when workers are lost or join, and how all get equal again.

A step is applied only after all its reductions, so at any instant a survivor has applied exactly k
or k + 1. Nothing is rolled back: unless all replicas agree the most advanced is copied (`meet`).
"""

from __future__ import annotations

import logging
import os
import time

from hetero_hvd.errors import InvariantError, UserError, WorkerLostError
from hetero_hvd.messages import Finished, Recovered, StepsTimed
from hetero_hvd.probes.timing import PhaseClock
from hetero_hvd.worker.admission import Seat, init
from hetero_hvd.worker.checkpoint import open_checkpoints
from hetero_hvd.worker.collective import Interrupted
from hetero_hvd.worker.description import Work
from hetero_hvd.worker.exchange import RESET, STOP, Table
from hetero_hvd.worker.integrity import heal
from hetero_hvd.worker.loader import ShareLoader
from hetero_hvd.worker.membership import (
    FRESH,
    Membership,
    Report,
    exchange_reports,
    meet,
    next_rendezvous_id,
)
from hetero_hvd.worker.payloads import gather_bytes
from hetero_hvd.worker.pipeline import Pipeline
from hetero_hvd.worker.position import Position
from hetero_hvd.worker.profile import StepProfile
from hetero_hvd.worker.replica import Replica, Stateful
from hetero_hvd.worker.sizing import Sizing
from hetero_hvd.worker.step_times import StepTimes
from hetero_hvd.worker.watchdog import Watchdog

logger = logging.getLogger(__name__)


class ElasticState:
    """This worker's replica and its membership in the job.

    Args:
        parts: Name to model, optimizer, scheduler, scaler: what must be equal on all workers.
        loader: For the global batch size and how far it loads ahead.
        clock: Tells the phase of the step that is under way.
        pipeline: The steps that are taken and not applied yet.
        sizing: Knows the memory and the micro-batches.

    Attributes:
        numerics: See `membership.Report`.
        work: What is trained.
    """

    def __init__(
        self,
        parts: dict[str, Stateful],
        loader: ShareLoader,
        clock: PhaseClock,
        pipeline: Pipeline,
        sizing: Sizing,
    ) -> None:
        self._pipeline, self._sizing = pipeline, sizing
        self.position = Position()
        self._replica = Replica({**parts, "position": self.position})
        self._checkpoints = open_checkpoints(os.environ, self._replica)
        floor_seconds = float(os.environ.get("HETERO_HVD_HANG_SECONDS", "inf"))
        self._clock, self._watchdog = clock, Watchdog(clock, floor_seconds=floor_seconds)
        self._loader = loader
        self.numerics, self.work = "", Work()
        self._seat: Seat | None = None
        self._membership: Membership | None = None
        self._times, self._profile = StepTimes(varies=pipeline.varies), StepProfile(clock)

    @property
    def seat(self) -> Seat:
        """This process's seat; admission happens at the first use."""
        if self._seat is None:
            self._seat = init(progress=lambda: self.position.applied_steps)
        return self._seat

    @property
    def membership(self) -> Membership:
        """The membership under way; UserError before `enter`."""
        if self._membership is None:
            raise UserError("take batches inside the loop over trainer.epochs()")
        return self._membership

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 at the moment."""
        return self._seat is None or self._seat.collective.rank == 0

    @property
    def num_workers(self) -> int:
        """Members at the moment."""
        return 1 if self._membership is None else len(self._membership.workers)

    def enter(self) -> None:
        """Be admitted and consistent with the others, if this has not happened yet."""
        if self._membership is None:
            resumed = self._checkpoints is not None and self._checkpoints.load_newest()
            if self.seat.client is not None:
                self.seat.client.on_beat = self._watchdog.end_if_overdue
            self._meet(is_new=True, has_state=resumed)
            self._times.ended_at = time.perf_counter()

    def shares_in_epoch(self, step_in_epoch: int) -> tuple[tuple[int, ...], int]:
        """The plan for a step of the epoch under way, and this worker's rank."""
        first = self.position.applied_steps - self.position.step_in_epoch
        return self.membership.shares_at(first + step_in_epoch), self.seat.collective.rank

    def recover(self, cause: str, reason: str) -> None:
        """Enter a new rendezvous and be consistent again; returns when training can go on.

        Args:
            cause: `fault` or `membership`.
            reason: In words, for the log.
        """
        logger.info("entering a new rendezvous: %s", reason)
        self._pipeline.forget(self.seat.collective)
        self._leave_if_due()
        self._restart()
        self._meet()
        self.seat.tell(
            Recovered(
                worker=self.seat.place.worker,
                rendezvous_id=self.membership.rendezvous_id,
                cause=cause,
                seconds=time.perf_counter() - self._times.ended_at,
                broadcast=self.membership.consistency.broadcast,
            )
        )

    def is_urgent(self, share: int, busy_seconds: float | None) -> bool:
        """Whether the next exchange should not wait: this worker has changed, or has a new plan.

        Args:
            share: Samples of this worker in the step under way.
            busy_seconds: Its own time in it; None if that is not known yet.
        """
        if busy_seconds is not None:
            step = self.position.applied_steps + self._pipeline.num_in_flight
            self._times.look(share, busy_seconds, planned=self._planned(step))
        if self._times.has_changed or not self.is_leader:
            return self._times.has_changed
        return self.membership.exchange.is_news(self.seat.planner.newest())

    def step_taken(self, share: int, seconds: dict[str, float], is_urgent: bool) -> None:
        """Account for a step, and take part in the exchange when one is due.

        Args:
            share: Samples of this worker in the step.
            seconds: Time per phase of this worker in the step.
            is_urgent: Whether any worker wanted an exchange now.
        """
        step = self.position.applied_steps + self._pipeline.num_in_flight - 1
        if "forward" in seconds and self._clock.busy_seconds is None:  # the device told it just now
            busy = sum(value for phase, value in seconds.items() if phase != "comm_wait")
            self._times.look(share, busy, planned=self._planned(step))
        more = self._profile.step_applied(self.seat, step)
        self._times.add(share, seconds, more | self._pipeline.state())
        self._watchdog.learn(seconds)
        self._sizing.timed(share, seconds)
        if self._checkpoints is not None and self.is_leader and self._checkpoints.is_due():
            self._checkpoints.save(self.position.applied_steps)
        self._leave_if_due()
        exchange = self.membership.exchange
        if is_urgent:
            exchange.hurry(step)
        try:
            num_applied, workers = self.position.applied_steps, self.membership.workers
            if heal(self.seat.collective, self._replica, workers, num_applied):
                self._times.forget()
            table = exchange.read() if exchange.is_awaited(step) else None
            if table is not None:
                self._act_on(table)
            if exchange is self.membership.exchange and exchange.is_due(step):
                flags = RESET * self.seat.reset_requested + STOP * self.seat.stop_requested
                newest = self.seat.planner.newest() if self.is_leader else None
                exchange.submit(step, self._sizing.measured(self._times.take()), newest, flags)
        except Interrupted as fault:
            self.recover("fault", str(fault))

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Keep the state that has the best result."""
        if self._checkpoints is not None and self._checkpoints.is_best(metrics) and self.is_leader:
            self._checkpoints.save(self.position.applied_steps, metrics)

    @property
    def _capacity(self) -> int:
        return self.seat.place.capacity

    def _leave_if_due(self) -> None:
        if (reason := self.seat.leave_reason) is not None:
            self.seat.part()
            self._leave(reason, self.seat.leave_code)

    def _planned(self, step: int) -> int:
        return self.membership.shares_at(step)[self.seat.collective.rank]

    def finish(self) -> bool:
        """All epochs are done: prove that all replicas are equal, and tell the driver.

        Returns:
            Whether it is so; if the membership changed under way, a member may not be as far.

        Raises:
            InvariantError: The replicas differ.
        """
        checksum = self._replica.checksum()
        try:
            self._tell_timings(self.membership.exchange.read())
            found = set(gather_bytes(self.seat.collective, checksum.encode(), "finish"))
        except Interrupted as fault:
            self.recover("fault", str(fault))
            return False
        if len(found) != 1:
            raise InvariantError(f"the replicas differ after {self.position.applied_steps} steps")
        self._keep_state()
        worker, applied_steps = self.seat.place.worker, self.position.applied_steps
        self._profile.finish(self.seat, applied_steps - 1)
        self.seat.tell(Finished(worker=worker, applied_steps=applied_steps, checksum=checksum))
        return True

    def _tell_timings(self, table: Table | None) -> None:
        if table is not None and self.is_leader:
            self.seat.planner.timed(
                StepsTimed(
                    rendezvous_id=self.membership.rendezvous_id,
                    step=table.step,
                    epoch=self.position.epoch,
                    loss=self.position.loss,
                    timings=table.timings,
                    exchange_seconds=table.blocked_seconds,
                )
            )

    def _act_on(self, table: Table) -> None:
        self.membership.follow(table.plan, applied_steps=self.position.applied_steps)
        self._tell_timings(table)
        if table.stop or table.reset:
            self._pipeline.drain(self.seat.collective)
        if table.stop:
            self._leave("the driver ends the job")
        if table.reset:
            self.recover("membership", "the driver wants another membership")

    def _restart(self) -> None:
        try:
            self.seat.collective.restart()
        except WorkerLostError as error:
            self._leave_if_due()
            self._leave(str(error))

    def _leave(self, reason: str, code: int = 0) -> None:
        """End this process quietly, as it was asked to; `finally` blocks of the script run."""
        logger.info("leaving: %s", reason)
        self._keep_state()
        raise SystemExit(code)

    def _keep_state(self) -> None:
        """The last one who could: rank 0 keeps what it has."""
        if self._checkpoints is not None and self.is_leader and self.position.applied_steps:
            self._checkpoints.save(self.position.applied_steps)
            self._checkpoints.wait()

    def _meet(self, *, is_new: bool = False, has_state: bool = True) -> None:
        seat = self.seat
        while True:
            report = Report(
                worker=seat.place.worker,
                applied_steps=self.position.applied_steps if has_state else FRESH,
                is_new=is_new,
                epoch=self.position.epoch,
                num_evaluations=len(self.position.evaluations),
                checksum=self._replica.checksum(),
                rendezvous_id=seat.rendezvous_id,
                global_batch_size=self._loader.global_batch_size,
                capacity=self._capacity,
                prefetch_steps=self._loader.prefetch_steps,
                staleness_bound=self._pipeline.bound,
                numerics=self.numerics,
                work=self.work,
                micro_batch_size=self._sizing.largest,
            )
            try:
                reports = exchange_reports(seat.collective, report)
                # Stored at once: should this rendezvous break, its id must not be used again.
                seat.agreed(next_rendezvous_id(reports))
                self._membership = meet(seat.collective, self._replica, reports, seat.planner)
                break
            except Interrupted as fault:
                logger.info("the rendezvous broke: %s", fault)
                self._restart()
        seat.reset_done()
        self._times.forget()
