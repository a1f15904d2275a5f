"""Which workers there should be, and which there are: one task for each slot of nodes.yaml."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.core.backoff import doubled
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.output.json_logs import LogLines
from hetero_hvd.driver.workers.gpu_counts import GpuCounts
from hetero_hvd.driver.workers.micro_batch_cap import ONE_SAMPLE
from hetero_hvd.driver.workers.restart_policy import FIRST_DELAY_SECONDS, Restarts
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_process import GRACE_SECONDS, WorkerProcess
from hetero_hvd.errors import UserError
from hetero_hvd.exit_codes import (
    EXIT_FAILED,
    EXIT_KILLED,
    EXIT_NO_PLACE,
    EXIT_NOT_STARTED,
    EXIT_OUT_OF_MEMORY,
    EXIT_TERMINATED,
)
from hetero_hvd.messages import DRAINED, Ready, WorkerId, WorkerQuarantined, WorkerStarted
from hetero_hvd.run.event_bus import EventBus

NO_PLACE_SECONDS, MAX_NO_PLACE_SECONDS = 0.1, 10.0
"""Between two tries to get a slot or a device that others have; it doubles up to the second."""

END_SECONDS, LOOK_SECONDS = 3.0, 0.5
"""For processes to end once they are killed, and between two looks whether they have."""


class WorkerPool:
    """All slots. Used in the loop's thread only, but `available` and `num_held`.

    Args:
        console: For what people should know.
        logs: Folder of the workers' output.
        launch: Starts the process of a slot; may raise OSError or UserError.
        count_gpus: Asks a node for its GPUs, where nodes.yaml does not say how many slots it has.
        on_change: Called when a worker became ready or went.
        on_exit: Called with a slot and its exit code, before the slot forgets the process.
        bus: Hears of starts and quarantines.
        log_lines: Makes JSON of the workers' output for their files; None: they get it as it is.

    Attributes:
        may_restart: Whether a worker that died is started again.
        grace_seconds: From when a worker is asked to end until it is killed.
        judged: Set unless it is still open whether what ended a worker ends the job.
        quarantined: Why a slot runs no worker although nodes.yaml has it.
    """

    def __init__(
        self,
        console: Console,
        logs: Path,
        *,
        launch: Callable[[Slot], Awaitable[WorkerProcess]],
        count_gpus: Callable[[NodeConfig], Awaitable[int]],
        on_change: Callable[[], None],
        on_exit: Callable[[Slot, int], None],
        bus: EventBus | None = None,
        log_lines: LogLines | None = None,
    ) -> None:
        self.may_restart = True
        self.grace_seconds = GRACE_SECONDS
        self.judged = asyncio.Event()
        self.judged.set()
        self._log_lines = log_lines
        self._console = console
        self._logs = logs
        self._launch = launch
        self._config: ClusterConfig | None = None
        self._gpus = GpuCounts(count_gpus, say=console.say, on_answer=self._follow)
        self._on_change = on_change
        self._on_exit = on_exit
        self._bus = bus or EventBus()
        self._tasks: dict[Slot, asyncio.Task[None]] = {}
        self._by_host: dict[str, Slot] = {}
        self._incarnations: Counter[WorkerId] = Counter()
        self._restarts = Restarts(0)
        self.quarantined: dict[WorkerId, tuple[NodeConfig, str]] = {}
        self._withdrawn: set[WorkerId] = set()
        self._available: tuple[str, ...] = ()
        self._held: tuple[Slot, ...] = ()

    @property
    def all(self) -> tuple[Slot, ...]:
        """The slots that run a worker or will again."""
        return tuple(self._tasks)

    def waits(self, now_seconds: float) -> dict[str, str | None]:
        """Each worker to what keeps it from training, as `Slot.waits_for` says."""
        return {str(slot.worker): slot.waits_for(now_seconds) for slot in self.all}

    def available(self) -> tuple[str, ...]:
        """Names of the workers that Horovod may count on.

        Those who should leave are among them while too few would be left, or nobody who has the
        state of the training: others take it over first.
        """
        return self._available

    def num_held(self) -> int:
        """So many of these should leave; any thread may call it."""
        return len(self._held)

    def find(self, host: str) -> Slot | None:
        """The slot whose running worker has this name as a Horovod host."""
        slot = self._by_host.get(host)  # each message asks: no look at all of them for it
        return slot if slot is not None and slot.runs_as(host) else None

    def became_ready(self, slot: Slot, ready: Ready) -> None:
        """Horovod may count on the worker from now on."""
        slot.ready = ready
        self.changed()

    def met(self, workers: Iterable[WorkerId]) -> None:
        """These members have met: all of them have the state of the training."""
        members = set(workers)
        for slot in self._tasks:
            slot.holds_state |= slot.worker in members and slot.admission is not None
        self.changed()

    @property
    def is_counting(self) -> bool:
        """Whether there may soon be more slots: a node is asked for its GPUs for the first time."""
        return self._gpus.is_waiting

    def follow(self, config: ClusterConfig) -> None:
        """Start the workers of new slots, let those go that are not wanted any more.

        Where the node's GPUs decide about its slots, they are there when it has told of them.
        """
        self._config = config
        self._gpus.ask(config.nodes)
        self._follow()

    def _follow(self) -> None:
        config = self._config
        if config is None or not self.may_restart:
            return
        self._restarts.budget = config.job.max_restarts
        wanted = {
            WorkerId(node.name, index): node
            for node in config.nodes
            for index in range(self._gpus.slots_of(node))
        }
        present = {slot.worker: slot for slot in self._tasks if slot.is_wanted}
        for worker, slot in present.items():
            if worker in wanted:
                slot.node = wanted[worker]
            else:
                is_announced = slot.node.kind.announces_itself
                where = "announced" if is_announced else "in nodes.yaml"
                self._release(slot, f"is no longer {where}")
        for worker in self.quarantined.keys() - wanted.keys():
            del self.quarantined[worker]
            self._restarts.reset(worker)
        for worker, node in wanted.items():
            if worker in present or self._stays_away(worker, node):
                continue
            if (held := next((s for s in self._held if s.worker == worker), None)) is not None:
                held.is_wanted = True
                held.node = node
                self._console.say(f"{worker} is wanted again and stays")
            else:
                path = self._logs / f"{worker.node}-{worker.slot}.log"
                slot = Slot(
                    worker=worker,
                    node=node,
                    output=self._output_of(worker, path),
                    number=self._free_number(),
                )
                self._tasks[slot] = asyncio.create_task(self._live(slot))
        self._released()

    def _free_number(self) -> int:
        taken = {slot.number for slot in self._tasks}
        return next(number for number in itertools.count() if number not in taken)

    def _output_of(self, worker: WorkerId, path: Path) -> WorkerOutput:
        as_json = partial(self._log_lines.of_output, worker) if self._log_lines else None
        return WorkerOutput(self._console, path, f"[{worker}] ", as_json=as_json)

    def _stays_away(self, worker: WorkerId, node: NodeConfig) -> bool:
        """Whether it is quarantined; an entry that was changed is worth a new try."""
        entry, _ = self.quarantined.get(worker, (None, ""))
        if entry == node:
            return True
        if entry is not None:
            del self.quarantined[worker]
            self._restarts.reset(worker)
        return False

    def drain(self, target: str) -> str:
        """Let the workers of a node or of one slot go, after the step under way, for good.

        Who is withdrawn at that time is not readmitted any more.

        Args:
            target: `NODE` or `NODE:SLOT`.

        Returns:
            What happens, in words.

        Raises:
            UserError: There are no such workers, or no others would be left to train.
        """
        wanted = [slot for slot in self._tasks if slot.is_wanted]
        found = [slot for slot in wanted if slot.worker.is_meant_by(target)]
        away = [w for w in self._withdrawn & self.quarantined.keys() if w.is_meant_by(target)]
        if not found and not away:
            names = ", ".join(str(slot.worker) for slot in wanted)
            raise UserError(f"{target!r}: no such node or worker; there are: {names}")
        if found and len(found) == len(wanted):
            why = f"no other worker would be left to train, so it stays; {self._instead_of_it()}"
            raise UserError(f"{', '.join(str(slot.worker) for slot in found)}: {why}")
        for worker in away:
            self._quarantine(worker, self.quarantined[worker][0], DRAINED)
        for slot in found:
            self._quarantine(slot.worker, slot.node, DRAINED)
            self._release(slot, "is drained")
        self._released()
        if not found:
            return f"{', '.join(map(str, sorted(away)))} is away already, and stays so"
        is_held = any(slot in self._held for slot in found)
        when = "when others have taken over" if is_held else "after the step under way"
        return f"{', '.join(str(slot.worker) for slot in found)} leaves {when}"

    def _instead_of_it(self) -> str:
        if away := sorted(filter(self.is_withdrawn, self._withdrawn)):
            return f"ask again when {' or '.join(map(str, away))} is back, which is away for now"
        return "to end the run, which keeps its state, stop it (Ctrl-C, or on its page)"

    def withdraw(self, found: Iterable[Slot], reason: str, why: str) -> None:
        """Let these workers go, after the step under way, until they are readmitted.

        As after a drain, an entry of nodes.yaml that was changed is worth a new try. `why` is told.
        """
        for slot in found:
            self.quarantined[slot.worker] = (slot.node, reason)
            self._withdrawn.add(slot.worker)
            self._release(slot, why)
        self._released()

    def is_withdrawn(self, worker: WorkerId) -> bool:
        """Whether it is away until it is readmitted, and for no other reason."""
        return worker in self._withdrawn and worker in self.quarantined

    def readmit(self, workers: Iterable[WorkerId]) -> None:
        """Start these again, as far as they are withdrawn and nodes.yaml still has them."""
        for worker in filter(self.is_withdrawn, workers):
            del self.quarantined[worker]
        self._follow()

    def refuse(self, slot: Slot, reason: str, *, may_return: bool = False) -> None:
        """Let a worker go that does not fit; an entry that was changed is worth a new try.

        Args:
            slot: Of the worker.
            reason: Why, in words.
            may_return: Whether it may be readmitted, too.
        """
        self._quarantine(slot.worker, slot.node, reason)
        if may_return:
            self._withdrawn.add(slot.worker)
        self._release(slot, f"is refused ({reason})")
        self.changed()

    def without(self, members: set[str]) -> list[Slot]:
        """Slots whose workers nodes.yaml and Horovod have both let go, but that still run."""
        return [
            slot
            for slot in self._tasks
            if slot.process and not slot.is_wanted and slot.host not in members
        ]

    def end(self) -> None:
        """Ask all workers to end, and start none again."""
        self.may_restart = False
        self._gpus.close()
        for slot, task in list(self._tasks.items()):
            slot.is_wanted = False
            if slot.process is not None:
                slot.process.terminate()
            else:
                task.cancel()

    def end_idle(self) -> None:
        """End those who are no members, and start none again: the job is over."""
        self.may_restart = False
        self._gpus.close()
        for slot in self.all:
            self._end_if_idle(slot)

    def kill(self) -> None:
        """End all workers at once."""
        for slot in self._tasks:
            if slot.process is not None:
                slot.process.kill()

    def allow(self, grace_seconds: float) -> None:
        """Each worker has so long to end."""
        self.grace_seconds = grace_seconds
        for slot in self._tasks:
            if slot.process is not None:
                slot.process.allow(grace_seconds)

    async def wait_for_grace(self) -> bool:
        """Wait for all workers to end, who were asked to; False if some outlast their grace."""
        began_at_seconds = time.monotonic()
        while not await self.wait(LOOK_SECONDS):
            longest = max((s.process.grace_seconds for s in self._tasks if s.process), default=0.0)
            if time.monotonic() > began_at_seconds + longest + END_SECONDS:
                return False
        return True

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for all workers to end; False if some still run after the timeout."""
        if not self._tasks:
            return True
        _, running = await asyncio.wait(self._tasks.values(), timeout=timeout_seconds)
        return not running

    def _release(self, slot: Slot, why: str) -> None:
        """A member goes on until Horovod has excluded it; see `without`."""
        slot.is_wanted = False
        self._console.say(f"{slot.worker} {why} and leaves")
        self._end_if_idle(slot)

    def _released(self) -> None:
        """Some may have been released: say so if they have to wait."""
        before = self._held
        self.changed()
        if any(slot not in before for slot in self._held):
            names = ", ".join(str(slot.worker) for slot in self._held)
            too_few = f"too few would be left: the training goes on with {names}"
            self._console.say(f"{too_few} until others have taken over")

    def _end_if_idle(self, slot: Slot) -> None:
        if slot.process is None:
            self._tasks[slot].cancel()
        elif slot.admission is None:
            slot.process.terminate()

    async def _live(self, slot: Slot) -> None:
        try:
            while (delay_seconds := await self._run_and_judge(slot)) is not None:
                if slot.num_refusals:
                    what = "is tried again until it is free"
                else:
                    slot.num_restarts += 1
                    what = f"restart {slot.num_restarts} in {delay_seconds:.0f} s "
                    what += f"({self._restarts.budget} may follow each other)"
                if slot.num_refusals <= 1:
                    self._console.say(f"{slot.worker}: {what}", "warning")
                await asyncio.sleep(delay_seconds)
                if not self.may_restart:  # the training has ended meanwhile
                    break
        finally:
            del self._tasks[slot]
            self._by_host.pop(slot.host, None)
            slot.output.close()
            self.changed()

    async def _run_and_judge(self, slot: Slot) -> float | None:
        """Run a worker to its end.

        Returns:
            Seconds until its restart; None if there will be none.
        """
        began_at_seconds = time.monotonic()
        code = await self._run(slot)
        await self.judged.wait()
        if code == 0 or not self.may_restart or not slot.is_wanted:
            return None
        now_seconds = time.monotonic()
        verdict: float | str
        if slot.num_refusals:  # its node is healthy, only busy
            verdict = doubled(NO_PLACE_SECONDS, slot.num_refusals - 1, MAX_NO_PLACE_SECONDS)
        elif code == EXIT_TERMINATED:
            verdict = "it was asked to leave by SIGTERM"
        elif slot.memory.failed:  # that will not happen again
            verdict = FIRST_DELAY_SECONDS
        elif slot.memory.is_hopeless:
            verdict = ONE_SAMPLE
        else:
            verdict = self._restarts.failed(
                slot.worker, now_seconds=now_seconds, lived_seconds=now_seconds - began_at_seconds
            )
        if isinstance(verdict, float):
            return verdict
        self._quarantine(slot.worker, slot.node, verdict)
        self._console.say(
            f"{slot.worker} is given up after {slot.num_restarts} restarts: {verdict}; "
            "it is tried again when its entry in nodes.yaml changes",
            "problem",
        )
        return None

    async def _run(self, slot: Slot) -> int:
        """One process, from its start to its end; 0 if that was in order."""
        incarnation = self._incarnations[slot.worker]
        self._incarnations[slot.worker] += 1
        suffix = f".r{incarnation}" if incarnation else ""
        self._by_host.pop(slot.host, None)
        slot.host = f"{slot.worker.node}-{slot.worker.slot}{suffix}"
        self._by_host[slot.host] = slot
        try:
            slot.process = await self._launch(slot)
            slot.process.allow(self.grace_seconds)
            self._bus.publish(
                WorkerStarted(worker=slot.worker, host=slot.host, num_restarts=slot.num_restarts)
            )
            code = await slot.process.exited
        except (OSError, UserError) as error:
            slot.output.feed(f"cannot be started: {error}\n".encode())
            code = EXIT_NOT_STARTED
        slot.came_back(is_refused=code == EXIT_NO_PLACE and not slot.ready)
        slot.memory.ended(was_killed=code == EXIT_OUT_OF_MEMORY)
        code = EXIT_KILLED if code == EXIT_OUT_OF_MEMORY else code
        is_lost = slot.has_ended_silently
        self._on_exit(slot, code)
        slot.ended()
        self.changed()
        return code or EXIT_FAILED * is_lost

    def _quarantine(self, worker: WorkerId, node: NodeConfig, reason: str) -> None:
        self._withdrawn.discard(worker)
        self.quarantined[worker] = (node, reason)
        self._bus.publish(WorkerQuarantined(worker=worker, reason=reason))

    def changed(self) -> None:
        """Tell whom Horovod may count on now."""
        available = [slot for slot in self._tasks if slot.is_available]
        num_needed = 1 if self._config is None else self._config.job.min_np
        can_go_on = len(available) >= num_needed and any(slot.holds_state for slot in available)
        self._held = tuple(slot for slot in self._tasks if slot.is_leaving and not can_go_on)
        counted = {*available, *self._held}
        self._available = tuple(slot.host for slot in self._tasks if slot in counted)
        self._on_change()
