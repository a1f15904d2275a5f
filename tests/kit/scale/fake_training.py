"""What the workers that compute nothing do together: meet, take steps, break off, meet again."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from hetero_hvd.messages import (
    BatchPlan,
    CollectivesTimed,
    DeviceUsed,
    Entered,
    Finished,
    Logged,
    LoggedValue,
    OperationTiming,
    Recovered,
    ScriptEnded,
    StepsTimed,
    StepTiming,
    WorkersJoined,
)
from tests.kit.scale.fake_mesh import MeshBrokenError
from tests.kit.scale.fake_worker import FakeWorker

SAMPLES_PER_WORKER = 64
OVERHEAD_RATIO, NOISE_RATIO = 0.1, 0.02
LOG_SECONDS, REPORT_SECONDS = 1.0, 2.0
"""As the workers have it: `logged_values`, `step_measurements`."""

Note = Callable[..., None]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong.

    Attributes:
        at_step: Applied steps at that time.
        rank: Of the worker.
        kind: It dies, it says nothing any more, or it becomes half as fast.
    """

    at_step: int
    rank: int
    kind: Literal["lost", "silent", "slow"]


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are to do.

    Attributes:
        num_steps: In all.
        step_seconds: Of a step that is divided as it should be.
        faults: In the order of their steps.
        seed: Of speeds and noise.
    """

    num_steps: int
    step_seconds: float = 0.1
    faults: tuple[Fault, ...] = ()
    seed: int = 0


class FakeTraining:
    """All workers of a job. Used in the loop's thread only.

    Args:
        script: What they do.
        note: Takes what happens.

    Attributes:
        applied_steps: So many.
        num_fired: Faults that have happened.
        is_over: Whether all steps are done.
    """

    def __init__(self, script: Script, note: Note) -> None:
        self.applied_steps = 0
        self.num_fired = 0
        self.is_over = False
        self._script = script
        self._note = note
        self._random = random.Random(script.seed)  # noqa: S311 - noise
        self._speeds: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(1024)
        self._entering: dict[FakeWorker, asyncio.Task[None]] = {}
        self._met: dict[int, FakeWorker] = {}
        self._members: list[FakeWorker] = []
        self._work: asyncio.Task[None] | None = None
        self._plan: BatchPlan | None = None
        self._has_plan = asyncio.Event()
        self._wants_reset = False
        self._began_at_seconds = math.inf
        self._logged_at_seconds = self._reported_at_seconds = -math.inf

    # --- what the workers tell, see `fake_worker.Crowd` ---------------------------------------

    def admitted(self, worker: FakeWorker) -> None:
        """It enters the rendezvous with the rank that the driver has given it."""
        assert worker.admission is not None  # noqa: S101
        environment = worker.admission.environment
        place = int(environment["HOROVOD_RANK"]), int(environment["HOROVOD_SIZE"])
        self._enter(worker, place)

    def planned(self, plan: BatchPlan) -> None:
        """The newest one counts."""
        if self._members and plan.rendezvous_id == self._members[0].rendezvous_id:
            self._plan = plan
            self._has_plan.set()

    def void(self, worker: FakeWorker) -> None:
        """It enters the next rendezvous, unless it is on its way already."""
        if worker in self._members:
            self._break()
        elif worker not in self._entering and not worker.is_over:
            self._enter(worker, None)

    def reset(self) -> None:
        """After the step under way."""
        self._wants_reset = True

    def gone(self, worker: FakeWorker) -> None:
        """Its connections have broken: the others learn of it at once."""
        if (task := self._entering.pop(worker, None)) is not None:
            task.cancel()
        if worker in self._members:
            self._break()

    # --- the rendezvous ------------------------------------------------------------------------

    def _break(self) -> None:
        """The members enter the next rendezvous, unless they are done."""
        if self.is_over:
            return
        if self._work is not None:
            self._work.cancel()
            self._work = None
        self._note("broken")
        self._began_at_seconds = time.monotonic()
        members, self._members = self._members, []
        for worker in members:
            if not worker.is_over:
                self._enter(worker, None)

    def _enter(self, worker: FakeWorker, place: tuple[int, int] | None) -> None:
        self._met = {rank: other for rank, other in self._met.items() if other is not worker}
        self._entering[worker] = asyncio.create_task(self._meet(worker, place))

    async def _meet(self, worker: FakeWorker, place: tuple[int, int] | None) -> None:
        loop, mesh = asyncio.get_running_loop(), worker.mesh
        assert mesh is not None  # noqa: S101
        while True:
            try:
                if place is None:
                    place = await loop.run_in_executor(self._threads, mesh.next_rank, worker.host)
                await loop.run_in_executor(self._threads, mesh.connect, *place)
                break
            except MeshBrokenError:
                place = None
                await asyncio.sleep(0.05)
        rank, size = place
        self._met[rank] = worker
        self._entering.pop(worker, None)
        if len(self._met) == size and not any(other.is_over for other in self._met.values()):
            self._members = [self._met[rank] for rank in range(size)]
            self._met = {}
            self._work = asyncio.create_task(self._train(self._members))

    # --- the training --------------------------------------------------------------------------

    async def _train(self, members: Sequence[FakeWorker]) -> None:
        is_first = not self.applied_steps
        joined = self._joined(members)
        for worker in members:
            worker.rendezvous_id = joined.rendezvous_id
        self._has_plan.clear()
        await members[0].send(joined)
        await self._has_plan.wait()
        self._wants_reset = False
        self._note("met", num_workers=len(members))
        for worker in members:
            await worker.send(self._arrival(worker, is_first=is_first))
        while self.applied_steps < self._script.num_steps:
            await self._step(members)
            if self._wants_reset:
                self._work = None
                self._break()
                return
        await self._finish(members)

    def _joined(self, members: Sequence[FakeWorker]) -> WorkersJoined:
        size = len(members)
        return WorkersJoined(
            rendezvous_id=1 + max(worker.rendezvous_id for worker in members),
            workers=tuple(worker.worker for worker in members),
            applied_steps=self.applied_steps,
            global_batch_size=SAMPLES_PER_WORKER * size,
            capacities=(-1,) * size,
            prefetch_steps=2,
            devices=("NVIDIA H100 80GB HBM3",) * size,
            memory_bytes=(80e9,) * size,
            model="Model",
        )

    def _arrival(self, worker: FakeWorker, *, is_first: bool) -> Entered | Recovered:
        if is_first:
            return Entered(worker=worker.worker)
        return Recovered(
            worker=worker.worker,
            rendezvous_id=worker.rendezvous_id,
            cause="fault",
            seconds=time.monotonic() - self._began_at_seconds,
            broadcast=False,
        )

    async def _step(self, members: Sequence[FakeWorker]) -> None:
        """One step; for ever, if one of them is silent."""
        plan = self._plan
        assert plan is not None  # noqa: S101
        self._fail(members)
        if any(worker.is_silent for worker in members):
            await asyncio.Event().wait()
        busy = [
            self._busy_seconds(worker, share)
            for worker, share in zip(members, plan.local_batch_sizes, strict=True)
        ]
        await asyncio.sleep(max(busy))
        self.applied_steps += 1
        if self.applied_steps % plan.exchange_steps == 0:
            rows = zip(plan.local_batch_sizes, busy, strict=True)
            timings = tuple(self._row(share, seconds, max(busy), plan) for share, seconds in rows)
            await members[0].send(
                StepsTimed(
                    rendezvous_id=plan.rendezvous_id,
                    step=self.applied_steps - 1,
                    epoch=0,
                    loss=1 / self.applied_steps,
                    timings=timings,
                    exchange_seconds=1e-4,
                )
            )
            self._note("exchange", step=self.applied_steps, slowest_seconds=max(busy))
        await self._report(members)

    def _fail(self, members: Sequence[FakeWorker]) -> None:
        """What is due of the faults."""
        for fault in self._script.faults[self.num_fired :]:
            if fault.at_step > self.applied_steps:
                break
            self.num_fired += 1
            worker = members[fault.rank % len(members)]
            self._note("fault", kind=fault.kind, worker=str(worker.worker))
            match fault.kind:
                case "lost":
                    asyncio.get_running_loop().call_soon(worker.end, 137)
                    worker.is_silent = True
                case "silent":
                    worker.is_silent = True
                case "slow":
                    self._speeds[worker.host] = self._speed_of(worker) / 2

    def _speed_of(self, worker: FakeWorker) -> float:
        """As drawn at its start, 1 at most."""
        return self._speeds.setdefault(worker.host, self._random.uniform(0.25, 1.0))

    def _busy_seconds(self, worker: FakeWorker, share: int) -> float:
        mean_speed = 0.625
        per_sample = (1 - OVERHEAD_RATIO) * self._script.step_seconds / SAMPLES_PER_WORKER
        seconds = per_sample * share * mean_speed / self._speed_of(worker)
        noise = math.exp(self._random.gauss(0.0, NOISE_RATIO))
        return (OVERHEAD_RATIO * self._script.step_seconds + seconds) * noise

    def _row(self, share: int, busy: float, step: float, plan: BatchPlan) -> StepTiming:
        """A row as long as a worker's is on the wire: no figure is round."""
        rest = 0.001 * self._random.random()
        return StepTiming(
            num_steps=plan.exchange_steps,
            local_batch_size=share,
            memory_bytes=2e10 + share * 1e6,
            data_wait_seconds=rest,
            transfer_seconds=rest / 3,
            forward_seconds=busy * 0.32,
            backward_seconds=busy * 0.63,
            comm_wait_seconds=step - busy,
            optimizer_seconds=busy * 0.05 - rest,
            step_seconds=step + rest / 7,
            memory_limit_bytes=8.5e10,
            micro_batch_size=0,
            other_seconds=rest / 7,
            overlapped_comm_seconds=busy / 3,
            processor_seconds=busy * 0.97,
            evaluation_seconds=0.0,
            contention_seconds=rest / 11,
            garbage_seconds=rest / 13,
        )

    async def _report(self, members: Sequence[FakeWorker]) -> None:
        """What is told now and then, beside heartbeats and exchanges."""
        now_seconds, step = time.monotonic(), self.applied_steps
        if now_seconds - self._logged_at_seconds >= LOG_SECONDS:
            self._logged_at_seconds = now_seconds
            loss = 1 / step
            value = LoggedValue(
                step=step, count=10, mean=loss, minimum=loss, maximum=loss, last=loss
            )
            values = {"loss": value, "learning_rate": value}
            await members[0].send(Logged(step=step, epoch=0, values=values))
        if now_seconds - self._reported_at_seconds >= REPORT_SECONDS:
            self._reported_at_seconds = now_seconds
            await members[0].send(_collectives(members, step))
            for worker in members:
                ratio = self._random.uniform(0.8, 1.0)
                await worker.send(
                    DeviceUsed(worker=worker.worker, step=step, utilization_ratio=ratio)
                )

    async def _finish(self, members: Sequence[FakeWorker]) -> None:
        self.is_over = True
        self._note("finished")
        for worker in members:
            steps = self.applied_steps
            await worker.send(Finished(worker=worker.worker, applied_steps=steps, checksum="0"))
        for worker in members:
            await worker.send(ScriptEnded(applied_steps=self.applied_steps, checksum="0"))
        await asyncio.gather(*(worker.part() for worker in members))


def _collectives(members: Sequence[FakeWorker], step: int) -> CollectivesTimed:
    operations = tuple(
        OperationTiming.first(kind, "gloo", 2**20, num_bytes=2**20, seconds=0.01)
        for kind in ("allreduce", "allgather")
    )
    return CollectivesTimed(
        rendezvous_id=members[0].rendezvous_id,
        step=step,
        num_workers=len(members),
        operations=operations,
    )
