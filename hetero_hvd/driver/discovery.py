"""Which workers there should be, and which there are: one task for each slot of nodes.yaml."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.driver.journal import Journal
from hetero_hvd.driver.launcher import WorkerProcess
from hetero_hvd.driver.log_lines import LogLines
from hetero_hvd.driver.memory_cap import EXIT_OUT_OF_MEMORY, ONE_SAMPLE
from hetero_hvd.driver.output import Console, WorkerOutput
from hetero_hvd.driver.restarts import FIRST_DELAY_SECONDS, Restarts
from hetero_hvd.driver.slot import Slot
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import Ready, WorkerId, WorkerQuarantined, WorkerStarted

EXIT_NOT_STARTED = 127
EXIT_KILLED = 137
EXIT_TERMINATED = 143
"""Of a worker that somebody has asked to go, by SIGTERM."""


class Slots:
    """All slots. Used in the loop's thread only, but `available`, which any thread may call.

    Args:
        console: For what people should know.
        logs: Folder of the workers' output.
        launch: Starts the process of a slot; may raise OSError or JobError.
        count_gpus: Asks a node for its GPUs, where nodes.yaml does not say how many slots it has.
        on_change: Called when a worker became ready or went.
        on_exit: Called with a slot and its exit code, before the slot forgets the process.
        journal: Hears of starts and quarantines.
        log_lines: Makes JSON of the workers' output for their files; None: they get it as it is.

    Attributes:
        may_restart: Whether a worker that died is started again.
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
        journal: Journal | None = None,
        log_lines: LogLines | None = None,
    ) -> None:
        self.may_restart = True
        self._log_lines = log_lines
        self._console = console
        self._logs = logs
        self._launch = launch
        self._count_gpus = count_gpus
        self._on_change = on_change
        self._on_exit = on_exit
        self._journal = journal or Journal()
        self._tasks: dict[Slot, asyncio.Task[None]] = {}
        self._num_gpus: dict[str, int] = {}
        self._incarnations: Counter[WorkerId] = Counter()
        self._restarts = Restarts(0)
        self.quarantined: dict[WorkerId, tuple[NodeConfig, str]] = {}
        self._available: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Slot, ...]:
        """The slots that run a worker or will again."""
        return tuple(self._tasks)

    def available(self) -> tuple[str, ...]:
        """Names of the workers that Horovod may count on."""
        return self._available

    def find(self, host: str) -> Slot | None:
        """The slot whose running worker has this name as a Horovod host."""
        return next((slot for slot in self._tasks if slot.process and slot.host == host), None)

    def became_ready(self, slot: Slot, ready: Ready) -> None:
        """Horovod may count on the worker from now on."""
        slot.ready = ready
        self.changed()

    async def follow(self, config: ClusterConfig) -> None:
        """Start the workers of new slots, let those go that are not wanted any more."""
        self._restarts.budget = config.job.max_restarts
        await self._ask_for_gpus(config.nodes)
        wanted = {
            WorkerId(node.name, index): node
            for node in config.nodes
            for index in range(node.resolved_slots(self._num_gpus.get(node.name, 0)))
        }
        present = {slot.worker: slot for slot in self._tasks if slot.is_wanted}
        for worker, slot in present.items():
            if worker in wanted:
                slot.node = wanted[worker]
            else:
                listed = slot.node.launcher != "agent"
                self._release(slot, f"is no longer {'in nodes.yaml' if listed else 'announced'}")
        for worker in self.quarantined.keys() - wanted.keys():
            del self.quarantined[worker]
        for worker, node in wanted.items():
            if worker not in present and not self._stays_away(worker, node):
                path = self._logs / f"{worker.node}-{worker.slot}.log"
                slot = Slot(
                    worker=worker,
                    node=node,
                    output=self._output_of(worker, path),
                )
                self._tasks[slot] = asyncio.create_task(self._live(slot))
        self.changed()

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
            self._restarts.forgive(worker)
        return False

    def drain(self, target: str) -> str:
        """Let the workers of a node or of one slot go, after the step under way, for good.

        Args:
            target: `NODE` or `NODE:SLOT`.

        Returns:
            What happens, in words.

        Raises:
            UserError: There are no such workers.
        """
        found = [
            slot
            for slot in self._tasks
            if slot.is_wanted and target in (slot.worker.node, str(slot.worker))
        ]
        if not found:
            names = ", ".join(str(slot.worker) for slot in self._tasks if slot.is_wanted)
            raise UserError(f"{target!r}: no such node or worker; there are: {names}")
        for slot in found:
            self._quarantine(slot, "drained")
            self._release(slot, "is drained")
        self.changed()
        return f"{', '.join(str(slot.worker) for slot in found)} leaves after the step under way"

    def refuse(self, slot: Slot, reason: str) -> None:
        """Let a worker go that does not fit; an entry that was changed is worth a new try."""
        self._quarantine(slot, reason)
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
        for slot, task in list(self._tasks.items()):
            slot.is_wanted = False
            if slot.process is not None:
                slot.process.terminate()
            else:
                task.cancel()

    def end_idle(self) -> None:
        """End those who are no members, and start none again: the job is over."""
        self.may_restart = False
        for slot in self.all:
            self._end_if_idle(slot)

    def kill(self) -> None:
        """End all workers at once."""
        for slot in self._tasks:
            if slot.process is not None:
                slot.process.kill()

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for all workers to end; False if some still run after the timeout."""
        if not self._tasks:
            return True
        _, running = await asyncio.wait(self._tasks.values(), timeout=timeout_seconds)
        return not running

    async def _ask_for_gpus(self, nodes: tuple[NodeConfig, ...]) -> None:
        unknown = [
            node
            for node in nodes
            if node.declared_slots is None and node.name not in self._num_gpus
        ]
        counts = await asyncio.gather(*(self._count_gpus(node) for node in unknown))
        self._num_gpus.update(zip((node.name for node in unknown), counts, strict=True))

    def _release(self, slot: Slot, why: str) -> None:
        """A member goes on until Horovod has excluded it; see `without`."""
        slot.is_wanted = False
        self._console.say(f"{slot.worker} {why} and leaves")
        self._end_if_idle(slot)

    def _end_if_idle(self, slot: Slot) -> None:
        if slot.process is None:
            self._tasks[slot].cancel()
        elif slot.admission is None:
            slot.process.terminate()

    async def _live(self, slot: Slot) -> None:
        try:
            while (delay_seconds := await self._run_and_judge(slot)) is not None:
                slot.num_restarts += 1
                self._console.say(
                    f"{slot.worker}: restart {slot.num_restarts} in {delay_seconds:.0f} s "
                    f"({self._restarts.budget} may follow each other)"
                )
                await asyncio.sleep(delay_seconds)
        finally:
            del self._tasks[slot]
            slot.output.close()
            self.changed()

    async def _run_and_judge(self, slot: Slot) -> float | None:
        """Run a worker to its end.

        Returns:
            Seconds until its restart; None if there will be none.
        """
        began_at_seconds = time.monotonic()
        code = await self._run(slot)
        if code == 0 or not self.may_restart or not slot.is_wanted:
            return None
        now_seconds = time.monotonic()
        verdict: float | str
        if code == EXIT_TERMINATED:
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
        self._quarantine(slot, verdict)
        self._console.say(
            f"{slot.worker} is given up after {slot.num_restarts} restarts: {verdict}; "
            "it is tried again when its entry in nodes.yaml changes"
        )
        return None

    async def _run(self, slot: Slot) -> int:
        """One process, from its start to its end."""
        incarnation = self._incarnations[slot.worker]
        self._incarnations[slot.worker] += 1
        suffix = f".r{incarnation}" if incarnation else ""
        slot.host = f"{slot.worker.node}-{slot.worker.slot}{suffix}"
        try:
            slot.process = await self._launch(slot)
            self._journal.publish(
                WorkerStarted(worker=slot.worker, host=slot.host, num_restarts=slot.num_restarts)
            )
            code = await slot.process.exited
        except (OSError, JobError) as error:
            slot.output.feed(f"cannot be started: {error}\n".encode())
            code = EXIT_NOT_STARTED
        slot.memory.ended(was_killed=code == EXIT_OUT_OF_MEMORY)
        code = EXIT_KILLED if code == EXIT_OUT_OF_MEMORY else code
        self._on_exit(slot, code)
        slot.ended()
        self.changed()
        return code

    def _quarantine(self, slot: Slot, reason: str) -> None:
        self.quarantined[slot.worker] = (slot.node, reason)
        self._journal.publish(WorkerQuarantined(worker=slot.worker, reason=reason))

    def changed(self) -> None:
        """Tell whom Horovod may count on now."""
        self._available = tuple(slot.host for slot in self._tasks if slot.is_available)
        self._on_change()
