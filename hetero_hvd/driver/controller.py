"""The workers of a job: what they say, who of them is a member, and when it is over."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero_hvd.config import ClusterConfig
from hetero_hvd.driver.crashes import Crashes
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.membership.admission import Admission
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.membership.rendezvous import Rendezvous
from hetero_hvd.driver.membership.shortage import MinWorkersNotice
from hetero_hvd.driver.membership.standstill import Standstill
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.driver.network.endpoints import DriverAddresses, Endpoints
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.json_logs import LogLines
from hetero_hvd.driver.status import status_of
from hetero_hvd.driver.workers.credentials import Credentials
from hetero_hvd.driver.workers.gpu_counts import count_gpus
from hetero_hvd.driver.workers.grace import WRITE_SECONDS, Grace
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_launch import WorkerLauncher
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.errors import InfeasiblePlanError, TryAgainError
from hetero_hvd.exit_codes import (
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_TRY_AGAIN,
    EXIT_UNFIT,
    EXIT_USER_ERROR,
    SIGNALLED,
    exit_in_words,
    exit_of_user_error,
)
from hetero_hvd.messages import (
    BatchPlan,
    ClockTold,
    Crashed,
    Entered,
    Event,
    Finished,
    FromWorker,
    Heartbeat,
    Leaving,
    Ready,
    RouteTold,
    ScriptEnded,
    WorkerExited,
    WorkersJoined,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.earlier_run import EarlierRun
from hetero_hvd.run.tracking.run_tracker import MAX_RESETS_WITHOUT_STEP, RunTracker
from hetero_hvd.security import descriptors

logger = logging.getLogger(__name__)

AFTER_A_LOOP = ", and is not started again: it would begin with the script's first loop over epochs"


class JobController:
    """Brings together slots, channels, rendezvous and Horovod. Used in the loop's thread.

    Args:
        config: Of the job at its start.
        command: The user's command.
        output: Folder for logs and decisions.
        console: Where to tell people.
        resume: The run to go on from; None: there is none.
        log_lines: See `WorkerPool`.

    Attributes:
        endpoints: Where the nodes reach the driver.
        launcher: Starts the workers' processes.
        slots: These.
        membership: Who of them trains.
        send: Tells the worker with a host's name something; False: it has no channel.
        reception: Receives those who are ready.
        tracker: The books of the run.
        bus: All that happens.
        all_lost: Set when all members are gone, but others may take their place.
        ended: Set once, when the job is over; an exception is a reason to give up.

    Raises:
        JobError: There is no way to a node.
    """

    def __init__(
        self,
        config: ClusterConfig,
        command: tuple[str, ...],
        output: Path,
        console: Console,
        resume: EarlierRun | None = None,
        *,
        log_lines: LogLines | None = None,
    ) -> None:
        self._job = config.job
        self._may_grow = config.may_grow
        self._console = console
        self._last_failure = 0
        credentials = Credentials()
        self._channels = ChannelServer(self, credentials.tls)
        self.send = self._channels.send
        self._rendezvous = Rendezvous(descriptors.limit())
        self.endpoints = Endpoints(DriverAddresses.of(config), self._channels)
        self._news = asyncio.Event()
        self.all_lost = asyncio.Event()
        self.ended: asyncio.Future[JobResult] = asyncio.get_running_loop().create_future()
        self.bus = EventBus(console.say)
        if log_lines is not None:
            self.bus.subscribe(log_lines.observe, "the log of events")
        self.tracker = RunTracker(config, console.say, output, self.bus)
        what = config, command, credentials, self.endpoints
        self.launcher = WorkerLauncher(
            *what, output=output, resume=resume, all_slots=lambda: self.slots.all
        )
        self.slots = WorkerPool(
            console,
            output / "logs",
            launch=self.launcher,
            count_gpus=count_gpus,
            on_change=self._slots_changed,
            on_exit=self._exited,
            bus=self.bus,
            log_lines=log_lines,
        )
        self.membership = Membership(
            config.job,
            slots=self.slots,
            channels=self._channels,
            endpoints=self.endpoints,
            rendezvous=self._rendezvous,
            tracker=self.tracker,
            on_over=self._over,
        )
        self._shortage = MinWorkersNotice(
            config.job, self.slots, self.membership, self.tracker, console, bus=self.bus
        )
        self._standstill = Standstill()
        self.bus.subscribe(Grace(self.slots).observe, "the grace of workers that end")
        self.bus.subscribe(self._send_plan, "")
        self._crashes = Crashes(self.slots, self.membership, console, self.end)
        self.reception = Admission(
            config.job, self.slots, self.membership, self._channels, bus=self.bus, console=console
        )

    def end(self, ending: JobResult) -> None:
        """The job is over; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(ending)
            self.slots.may_restart = False
            self.slots.judged.set()

    def give_up(self, task: asyncio.Task[None]) -> None:
        """Called when the job's main task has ended: it never does without a reason to give up."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.ended.done():
            self.ended.set_exception(error)

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Wait until a worker became ready or went."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_seconds)
        self._news.clear()

    def check(self, *, slept_too_long_seconds: float) -> None:
        """Look for workers that hang, and for a job that does not get on. Call it often.

        Args:
            slept_too_long_seconds: So long the driver itself did not run; not the workers' fault.
        """
        now, slept_seconds = time.monotonic(), max(0.0, slept_too_long_seconds)
        for slot in self.slots.all:
            slot.heard_at_seconds += slept_seconds
            silent_seconds = now - slot.heard_at_seconds
            has_ended = slot.last_word is not None  # its process may take any time to end
            if slot.ready and not has_ended:
                self._check_silence(slot, silent_seconds, now)
        for host in self._rendezvous.overdue(self._job.elastic_timeout_seconds):
            if (late := self.slots.find(host)) is not None:
                self._kill(late, "has let the others wait for too long")
        self._crashes.look()
        members = sorted(slot.worker for slot in self.membership.present)
        if stuck := self._standstill.found(members, now):
            self.end(JobResult(EXIT_USER_ERROR, stuck))
        self._shortage.look(is_ended=self.ended.done())
        may_train = bool(self.membership.hosts) and not self._shortage.is_memory_short
        is_training = may_train and not self.ended.done()
        self.tracker.diagnosis.look_for_stall(is_training=is_training, slept_seconds=slept_seconds)
        self.reception.look()
        if self.tracker.resets_without_step >= MAX_RESETS_WITHOUT_STEP:
            raise TryAgainError(
                f"{MAX_RESETS_WITHOUT_STEP} resets in a row without a step: see the workers' logs"
            )

    def _check_silence(self, slot: Slot, silent_seconds: float, now_seconds: float) -> None:
        """Stopped, stuck or out of reach it is lost; but a call may just hold its interpreter."""
        limit_seconds = self._job.heartbeat_timeout_seconds
        if silent_seconds < limit_seconds / 2:
            return
        is_busy = slot.is_busy(now_seconds)
        if silent_seconds > max(limit_seconds, is_busy * self._job.hang_timeout_seconds):
            though = ", though it computes," if is_busy else ""
            self._kill(slot, f"has been silent for {silent_seconds:.0f} s{though}")

    async def close(self) -> None:
        """Close all sockets and files."""
        self._rendezvous.close()
        await self._channels.close()
        self.tracker.close()

    # --- the workers' channels, see `server.Desk` ---------------------------------------------

    def expects(self, host: str) -> bool:
        """Whether the worker that we have started under this name still runs."""
        return self.slots.find(host) is not None

    def connected(self, host: str, address: str) -> None:
        """From now on the rendezvous answers this address."""
        logger.info("%s is connected from %s", host, address)
        self._rendezvous.allow(address)

    def received(self, host: str, message: FromWorker) -> None:
        """Act on a worker's message."""
        if (slot := self.slots.find(host)) is None:
            return
        slot.heard(message)
        try:
            self._handle(slot, message)
        except InfeasiblePlanError as error:
            self.end(self._shortage.judged(error))
        except Exception as error:  # noqa: BLE001 - raised again by whoever awaits `ended`
            if not self.ended.done():
                self.ended.set_exception(error)

    def status(self) -> dict[str, Any]:
        """What GET /status answers."""
        refused = {"channel": self._channels.refused, "rendezvous": self._rendezvous.refused}
        facts = status_of(self.slots, self.membership, self.tracker, is_ended=self.ended.done())
        return facts | {"refused": refused}

    def _handle(self, slot: Slot, message: FromWorker) -> None:
        if isinstance(message, Event):
            self.bus.publish(message)
        match message:
            case Ready():
                self.reception.ready(slot, message)
            case Heartbeat():
                self.tracker.diagnosis.beat(slot.worker, message)
                self._standstill.told(slot.worker, message, time.monotonic())
            case Crashed():
                self._crashed(slot, message)
            case Entered() | Finished():
                self._loop_begins_or_ends(slot, message)
            case ScriptEnded():
                self._script_ended(slot, message)
            case Leaving():
                self._leaves(slot, message)
            case ClockTold() | RouteTold():
                self.reception.answered(slot, message)
            case WorkersJoined():
                self.slots.met(message.workers)
                self.bus.publish(self._rendezvous.met(message.rendezvous_id))

    def _send_plan(self, _at_unix_seconds: float, event: object) -> None:
        """Rank 0 hands a plan on to all, with the next exchange; an observer of the bus."""
        if isinstance(event, BatchPlan):
            for slot in self.slots.all:  # none, if it has ended meanwhile
                if slot.worker == event.workers[0]:
                    self._channels.send(slot.host, event)

    def _loop_begins_or_ends(self, slot: Slot, message: Entered | Finished) -> None:
        if isinstance(message, Entered):
            self.tracker.summary.entered(slot.worker, slot.num_entered)
            self.tracker.diagnosis.entered(slot.worker)
            return
        self.slots.may_restart = False  # a new worker would begin with the first loop again
        self.membership.release_ended()

    def _leaves(self, slot: Slot, word: Leaving) -> None:
        self.tracker.summary.reached(word.applied_steps)
        self.tracker.diagnosis.left(slot.worker)
        if word.is_writing and slot.process is not None:
            self._console.say(f"{slot.worker} keeps the state of step {word.applied_steps}")
            slot.process.allow(WRITE_SECONDS, whatever_follows=True)
        self.reception.leaves(slot)

    def _crashed(self, slot: Slot, crash: Crashed) -> None:
        if not slot.is_wanted or self.ended.done():
            return
        others = [other for other in self.membership.present if other is not slot]
        is_behind = not slot.num_entered and any(other.num_entered for other in others)
        is_its_own = (crash.user_error and is_behind) or (crash.is_of_machine and others)
        if is_its_own:  # they train with the same script
            slot.output.drop()  # one line is enough
            self.slots.refuse(slot, crash.error)
        else:
            code = exit_of_user_error(may_pass=crash.may_pass) if crash.user_error else EXIT_FAILED
            self._crashes.add(slot, crash, code)

    def _kill(self, slot: Slot, fault: str) -> None:
        if slot.process is not None:
            self._console.say(f"{slot.worker} {fault} and is killed", "problem")
            slot.heard_at_seconds = math.inf
            slot.process.kill()
            self.membership.lost(slot.host)

    @property
    def _may_go_on(self) -> bool:
        """Whether there are, or will be, enough workers: nodes may still come."""
        has_enough = self._may_grow or len(self.slots.all) >= self._job.min_np
        return has_enough and self.slots.may_restart

    @property
    def _has_script_ended(self) -> bool:
        """Whether all members have come to the end of the script, before their last epoch."""
        workers = self.tracker.summary.workers
        members = [workers[worker] for worker in self.tracker.workers or workers]
        return bool(members) and all(record.script_ended for record in members)

    def _slots_changed(self) -> None:
        self._news.set()
        has_trained = bool(self.tracker.workers)
        if self.ended.done() or not (self.membership.has_started or has_trained):
            return
        self.membership.hosts_changed()
        is_short = self.slots.may_restart and not self._may_go_on
        if self._last_failure and is_short and not self._has_script_ended:
            reason = f"{len(self.slots.all)} workers are left, min_np is {self._job.min_np}"
            self.end(JobResult(self._last_failure, reason))

    def _exited(self, slot: Slot, code: int) -> None:
        self._rendezvous.gone(slot.host)
        is_orderly = isinstance(slot.last_word, Leaving) or bool(code == 0 and slot.last_word)
        self.membership.lost(slot.host, is_orderly=is_orderly)  # first: the others stand still
        record = self.tracker.summary.workers[slot.worker]
        record.exit_codes.append(code)
        record.is_ended_by_driver = self.ended.done() and code > SIGNALLED
        words = exit_in_words(code)
        self.bus.publish(
            WorkerExited(worker=slot.worker, host=slot.host, exit_code=code, words=words)
        )
        self.reception.gone(slot.host)
        self._last_failure = code or EXIT_FAILED * slot.has_ended_silently or self._last_failure
        if self.ended.done():
            return
        if slot.memory.failed:
            self._handle(slot, slot.memory.as_event(slot.worker, self.tracker.summary.last_step))
        if not slot.is_wanted:
            self._console.say(f"{slot.worker} has left")
            return
        what = f"{slot.worker} {words}"
        after = f"; the job was at step {self.tracker.summary.num_steps} when last heard of"
        has_finished = self.tracker.summary.workers[slot.worker].finished is not None
        if slot.ready is None:
            self._not_started(slot, code, what)
        elif code and isinstance(slot.last_word, ScriptEnded) and not has_finished:
            error = f"the script has ended with exit code {code}"
            told = Crashed(worker=slot.worker, error=error, traceback="", user_error=False)
            self._crashes.add(slot, told, code)
        elif code and not isinstance(slot.last_word, Crashed):
            again = "" if self.slots.may_restart else AFTER_A_LOOP
            self._console.say(f"{what}{after}{again}", "problem")
        elif slot.has_ended_silently and not has_finished:
            lost = f"{what}, but its script has not ended: it counts as lost{after}"
            self._console.say(lost, "problem")

    def _script_ended(self, slot: Slot, event: ScriptEnded) -> None:
        self.tracker.summary.script_ended(slot.worker, event)
        self.tracker.diagnosis.left(slot.worker)
        self.membership.release_ended()
        if self.tracker.summary.workers[slot.worker].finished is None:
            is_in_loop = slot.num_entered > slot.num_finished
            where = ", before its loop over the epochs was through" if is_in_loop else ""
            steps = f"{event.applied_steps} steps{where}"
            self._console.say(f"the script of {slot.worker} has ended after {steps}")

    def _not_started(self, slot: Slot, code: int, what: str) -> None:
        """A worker ended before it was ready; if none got further, the job cannot start."""
        lines = (line for line in reversed(slot.output.tail) if line.strip())
        last_line = next(lines, "it has printed nothing")
        if code in (EXIT_REFUSED, EXIT_UNFIT):
            self._input_is_wrong(slot, last_line, is_of_node=code == EXIT_UNFIT)
            return
        if slot.num_refusals <= 1:  # else it would be said again and again
            self._console.say(f"{what} before it was ready: {last_line}", "problem")
        wait_seconds = self._job.device_wait_seconds
        is_hopeful = slot.waits_for_device(wait_seconds) or any(
            other.may_become_ready(wait_seconds) for other in self.slots.all if other is not slot
        )
        is_away = self._may_grow and code in launcher_of(slot.node).unreachable_codes
        if not self.membership.has_started and not is_hopeful and not is_away:
            if not code:
                what = (
                    "the script ended without a loop over the epochs() of a hetero_hvd.Trainer, "
                    "and without hvd.init()"
                )
            reason = f"no worker became ready: {what}: {last_line}"
            is_busy = bool(slot.num_refusals)
            self.end(JobResult(EXIT_TRY_AGAIN if is_busy else code or EXIT_USER_ERROR, reason))

    def _input_is_wrong(self, slot: Slot, line: str, *, is_of_node: bool) -> None:
        """Of the whole job, unless another worker got further, or still may."""
        others = [other for other in self.slots.all if other is not slot and other.is_wanted]
        may_train = any(is_of_node or other.ready for other in others)
        code = exit_of_user_error(may_pass=is_of_node)  # another machine may be fit
        if self.membership.has_started or may_train:
            self._last_failure = code  # should too few be left
            self.slots.refuse(slot, line)
            return
        for other in self.slots.all:  # they run the same script: one line is enough
            other.output.is_shown = False
        self.end(JobResult(code, f"{slot.worker}: {line}"))

    def _over(self, reason: str | None) -> None:
        """All members have ended, or Horovod could not go on without those who did."""
        self._crashes.look()
        summary = self.tracker.summary
        finished = any(record.finished for record in summary.workers.values())
        present = self.tracker.workers or summary.workers
        members = [summary.workers[worker] for worker in present]
        are_all_lost = self._last_failure and not self.membership.present
        if finished:
            pairs = zip(present, members, strict=True)
            ends = [(worker, r.exit_codes[-1:]) for worker, r in pairs if r.finished]
            worker, code = next(((w, codes[0]) for w, codes in ends if any(codes)), (None, 0))
            later = f"; after that {worker} {exit_in_words(code)}" if code else ""
            self.end(JobResult(code, f"the training is finished{later}", is_orderly=True))
        elif self._has_script_ended:
            code = 0 if summary.is_consistent in (True, None) else 1
            reason = f"the script has ended on all workers after {summary.num_steps} steps"
            self.end(JobResult(code, reason, is_orderly=True))
        elif are_all_lost and self._may_go_on and not self.ended.done():
            lost = f"all members are lost at step {max(0, self.tracker.summary.last_step)}"
            self._console.say(f"{lost}: the next go on from the last checkpoint, if any", "problem")
            self.all_lost.set()
        else:
            code = self._last_failure or EXIT_FAILED
            self.end(JobResult(code, reason or "no worker is left to go on with"))
