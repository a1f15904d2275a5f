"""The workers of a job: what they say, who of them is a member, and when it is over."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero_hvd import channel
from hetero_hvd.config import ClusterConfig
from hetero_hvd.driver.credentials import Credentials
from hetero_hvd.driver.discovery import Slots
from hetero_hvd.driver.ending import Ending
from hetero_hvd.driver.journal import Journal
from hetero_hvd.driver.launcher import count_gpus, exit_in_words
from hetero_hvd.driver.ledger import MAX_RESETS_WITHOUT_STEP, Ledger
from hetero_hvd.driver.log_lines import LogLines
from hetero_hvd.driver.membership import Membership
from hetero_hvd.driver.network import DriverAddresses, Endpoints
from hetero_hvd.driver.output import Console
from hetero_hvd.driver.reception import Reception
from hetero_hvd.driver.rendezvous import Rendezvous
from hetero_hvd.driver.server import ChannelServer
from hetero_hvd.driver.shortage import Shortage
from hetero_hvd.driver.slot import Slot
from hetero_hvd.driver.starter import Starter
from hetero_hvd.driver.status import status_of
from hetero_hvd.errors import JobError
from hetero_hvd.messages import (
    ClockTold,
    Crashed,
    Finished,
    FromWorker,
    Heartbeat,
    Leaving,
    MicroBatchRaised,
    Ready,
    WorkerExited,
)

logger = logging.getLogger(__name__)

EXIT_USER_ERROR = 2


class Team:
    """Brings together slots, channels, rendezvous and Horovod. Used in the loop's thread.

    Args:
        config: Of the job at its start.
        command: The user's command.
        output: Folder for logs and decisions.
        console: Where to tell people.
        resume: Folder of an earlier run to go on from.
        log_lines: See `Slots`.

    Attributes:
        endpoints: Where the nodes reach the driver.
        slots: The workers' processes.
        membership: Who of them trains.
        send: Tells the worker with a host's name something; False: it has no channel.
        reception: Receives those who are ready.
        ledger: The books of the run.
        journal: All that happens.
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
        resume: Path | None = None,
        *,
        log_lines: LogLines | None = None,
    ) -> None:
        self._job, self._console, self._last_failure = config.job, console, 0
        secrets = Credentials.new(tls=config.job.channel_tls)
        self._channels = ChannelServer(secrets.key, self, secrets.tls)
        self.send, self._rendezvous = self._channels.send, Rendezvous()
        self.endpoints = Endpoints(DriverAddresses.of(config), self._channels, self._rendezvous)
        self._news, self.all_lost = asyncio.Event(), asyncio.Event()
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.journal = Journal()
        if log_lines is not None:
            self.journal.subscribe(log_lines.observe)
        self.ledger = Ledger(config, console, output / "decisions.jsonl", self.journal)
        start = Starter(config, command, secrets, self.endpoints, output=output, resume=resume)
        self.slots = Slots(
            console,
            output / "logs",
            launch=start,
            count_gpus=count_gpus,
            on_change=self._slots_changed,
            on_exit=self._exited,
            journal=self.journal,
            log_lines=log_lines,
        )
        self.membership = self._new_membership()
        self._shortage = Shortage(config.job, self.slots, self.membership, console)
        self.reception = Reception(
            self.slots, self.membership, self._channels, self.journal, console
        )

    def _new_membership(self) -> Membership:
        return Membership(
            self._job,
            slots=self.slots,
            channels=self._channels,
            endpoints=self.endpoints,
            rendezvous=self._rendezvous,
            ledger=self.ledger,
            on_over=self._over,
        )

    def end(self, ending: Ending) -> None:
        """The job is over; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(ending)
            self.slots.may_restart = False

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
        now = time.monotonic()
        for slot in self.slots.all:
            slot.heard_at_seconds += max(0.0, slept_too_long_seconds)
            silent_seconds = now - slot.heard_at_seconds
            is_done = slot.left.is_set() or self.ledger.summary.workers[slot.worker].finished
            if slot.ready and not is_done and silent_seconds > self._job.heartbeat_timeout_seconds:
                self._kill(slot, f"has been silent for {silent_seconds:.0f} s")
        for host in self._rendezvous.overdue(self._job.elastic_timeout_seconds):
            if (late := self.slots.find(host)) is not None:
                self._kill(late, "has let the others wait for too long")
        self._shortage.look(is_ended=self.ended.done())
        self.reception.look()
        if self.ledger.resets_without_step >= MAX_RESETS_WITHOUT_STEP:
            raise JobError(
                f"{MAX_RESETS_WITHOUT_STEP} resets in a row without a step: see the workers' logs"
            )

    async def close(self) -> None:
        """Close all sockets and files."""
        self._rendezvous.close()
        await self._channels.close()
        self.ledger.close()

    # --- the workers' channels, see `server.Desk` ---------------------------------------------

    def expects(self, hello: channel.Hello) -> bool:
        """Whether this worker was started by us and still runs."""
        slot = self.slots.find(hello.host)
        return slot is not None and slot.worker == hello.worker

    def connected(self, hello: channel.Hello, address: str) -> None:
        """From now on the rendezvous answers this address."""
        logger.info("%s is connected from %s", hello.host, address)
        self._rendezvous.allow(address)

    def received(self, host: str, message: FromWorker) -> None:
        """Act on a worker's message."""
        if (slot := self.slots.find(host)) is None:
            return
        slot.heard(message)
        try:
            self._handle(slot, message)
        except Exception as error:  # noqa: BLE001 - raised again by whoever awaits `ended`
            if not self.ended.done():
                self.ended.set_exception(error)

    def status(self) -> dict[str, Any]:
        """What GET /status answers."""
        refused = {"channel": self._channels.refused, "rendezvous": self._rendezvous.refused}
        facts = status_of(self.slots, self.membership, self.ledger, is_ended=self.ended.done())
        return facts | {"refused": refused}

    def _handle(self, slot: Slot, message: FromWorker) -> None:
        if not isinstance(message, Heartbeat | MicroBatchRaised | Leaving | ClockTold):
            self.journal.publish(message)
        match message:
            case Ready():
                self.reception.ready(slot, message)
            case Crashed():
                self._crashed(slot, message)
            case Finished():
                self.slots.may_restart = False
                self.ledger.take(message)
            case Leaving():
                self.reception.leaves(slot)
            case ClockTold():
                self.reception.told_time(slot, message)
            case _:
                for plan in self.ledger.take(message):
                    self._channels.send(slot.host, plan)

    def _crashed(self, slot: Slot, crash: Crashed) -> None:
        if not slot.is_wanted or self.ended.done():
            return
        for other in self.slots.all:  # all fail in the same way: one traceback is enough
            other.output.is_shown = False
        for line in [] if crash.user_error else crash.traceback.rstrip().splitlines():
            self._console.say(line)
        self._console.say(f"{slot.worker}: {crash.error}")
        self.end(
            Ending(EXIT_USER_ERROR if crash.user_error else 1, f"{slot.worker}: {crash.error}")
        )

    def _kill(self, slot: Slot, fault: str) -> None:
        if slot.process is not None:
            self._console.say(f"{slot.worker} {fault} and is killed")
            slot.heard_at_seconds = math.inf
            slot.process.kill()
            self.membership.lost(slot.host)

    def _slots_changed(self) -> None:
        self._news.set()
        if not self.membership.has_started or self.ended.done():
            return
        self.membership.hosts_changed()
        num_left = len(self.slots.all)
        if num_left < self._job.min_np and self._last_failure and self.slots.may_restart:
            reason = f"{num_left} workers are left, min_np is {self._job.min_np}"
            self.end(Ending(self._last_failure, reason))

    def _exited(self, slot: Slot, code: int) -> None:
        self.ledger.summary.workers[slot.worker].exit_codes.append(code)
        words = exit_in_words(code)
        self.journal.publish(
            WorkerExited(worker=slot.worker, host=slot.host, exit_code=code, words=words)
        )
        self.reception.gone(slot.host)
        self.membership.lost(slot.host, is_orderly=code == 0)
        self._last_failure = code or self._last_failure
        if self.ended.done():
            return
        if slot.memory.failed:
            self._handle(slot, slot.memory.as_event(slot.worker, self.ledger.summary.last_step))
        if not slot.is_wanted:
            self._console.say(f"{slot.worker} has left")
            return
        what = f"{slot.worker} {words}"
        if slot.ready is None:
            self._not_started(slot, code, what)
        elif code:
            self._console.say(f"{what} after {self.ledger.summary.num_steps} steps")

    def _not_started(self, slot: Slot, code: int, what: str) -> None:
        """A worker ended before it was ready; if none got further, the job cannot start."""
        last_line = next((line for line in reversed(slot.output.tail) if line.strip()), "")
        self._console.say(f"{what} before it was ready: {last_line}")
        is_hopeful = any(
            other.ready or other.num_restarts == 0 for other in self.slots.all if other is not slot
        )
        if not self.membership.has_started and not is_hopeful:
            what = what if code else "the script ended without calling hetero_hvd.init()"
            self.end(Ending(code or 1, f"no worker became ready: {what}: {last_line}"))

    def _over(self, reason: str | None) -> None:
        """All members have ended, or Horovod could not go on without those who did."""
        records = self.ledger.summary.workers.values()
        finished = [record.exit_codes[-1:] for record in records if record.finished]
        can_go_on = self.slots.may_restart and len(self.slots.all) >= self._job.min_np
        are_all_lost = self._last_failure and not self.membership.present
        if finished:
            code = next((codes[0] for codes in finished if any(codes)), 0)
            self.end(Ending(code, "the training is finished", is_orderly=True))
        elif are_all_lost and can_go_on and not self.ended.done():
            self._console.say(
                f"all members are lost at step {self.ledger.summary.last_step}: the others go on "
                "from the last checkpoint"
            )
            self.all_lost.set()
        elif self._last_failure:
            self.end(Ending(self._last_failure, reason or "no worker is left to go on with"))
        else:
            self.end(Ending(0, reason or "all workers have ended", is_orderly=True))
