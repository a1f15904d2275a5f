"""A run to be looked at: its events, its live page in a thread, and its folder with report.html.

It has all that there is to be seen: workers of unlike speed, plans, a straggler, one that is lost
and comes back, evaluations, learning rates, nodes with GPUs.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from hetero_hvd.config import JobConfig
from hetero_hvd.core.diagnosis.judge import Diagnoser
from hetero_hvd.core.step_table import StepTables, with_tables
from hetero_hvd.core.view.live import LiveView
from hetero_hvd.core.view.plots.run_plots import RunPlots
from hetero_hvd.messages import (
    BatchPlan,
    CheckpointWritten,
    DeviceEquipment,
    DeviceSample,
    Evaluated,
    Event,
    Judged,
    Logged,
    LoggedValue,
    NodeEquipped,
    NodeSampled,
    RunEnded,
    RunStarted,
    StepsTimed,
    StepTiming,
    StragglerReported,
    WorkerExited,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.reports.html import write_report
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources

STEPS_PER_EXCHANGE = 10
NUM_EXCHANGES = 240
EPOCH = 60
TOTAL_STEPS = 4000
SPEEDS = (1.0, 0.5, 0.21)
BATCH = 256
NODES = ("alpha", "beta", "gamma")
SLOW, WELL, LOST = 100, 140, 180
"""Exchanges at which the second worker gets slow and well again, and the last one is lost."""


def shares_of(speeds: tuple[float, ...]) -> tuple[int, ...]:
    """In proportion; the first has the rest."""
    others = [round(BATCH * speed / sum(speeds)) for speed in speeds[1:]]
    return (BATCH - sum(others), *others)


def _row(share: int, speed: float, longest: float, number: int, data: float = 0.0) -> StepTiming:
    """Of ten steps."""
    wobble = 1 + 0.04 * math.sin(0.7 * number + 5 * speed)
    work = 0.002 * share / speed * wobble
    own = 0.92 * work + 0.01 + data
    return StepTiming(
        num_steps=STEPS_PER_EXCHANGE,
        local_batch_size=share,
        memory_bytes=8e9 * speed,
        data_wait_seconds=0.004 + data,
        transfer_seconds=0.006,
        forward_seconds=0.3 * work,
        backward_seconds=0.6 * work,
        comm_wait_seconds=max(0.0, longest - own),
        optimizer_seconds=0.02 * work,
        step_seconds=max(longest, own),
        other_seconds=0.001,
        evaluation_seconds=0.0,
        overlapped_comm_seconds=0.01,
    )


def history(
    now: float,
    *,
    nodes: tuple[str, ...] = NODES,
    num_exchanges: int = NUM_EXCHANGES,
    name: str = "digits",
    metric: str = "accuracy",
    is_over: bool = False,
) -> Iterator[tuple[float, Event]]:
    """Its events, the last of them just now.

    Args:
        now: Seconds since 1970.
        nodes: Names of its nodes, a worker each.
        num_exchanges: Of timings.
        name: What its user calls it.
        metric: What is evaluated.
        is_over: Whether it has ended.
    """
    workers = tuple(WorkerId(node, 0) for node in nodes)
    speeds = tuple(SPEEDS[i % len(SPEEDS)] for i in range(len(nodes)))
    begin = now - num_exchanges - 30
    yield (
        begin,
        RunStarted(
            run_id="2026-11-21T04-10-01Z-4f1d09aa",
            command=("python", "train.py", "--lr", "0.1"),
            nodes=nodes,
            settings={"mode": "synchronous", "output": "runs/2026-11-21T04-10-01Z"},
            name=name,
            tags={"lr": "0.1"},
            origin={"git commit": "1f0e3dad99908345f7439f8ffabdffc4", "torch": "2.9.1"},
        ),
    )
    for node in nodes:
        gpu = DeviceEquipment(index=0, name="NVIDIA H100 80GB HBM3")
        yield begin, NodeEquipped(node=node, processor="EPYC 9354", num_cpus=64, devices=(gpu,))
    for worker in workers:
        yield begin + 5, WorkerStarted(worker=worker, host=f"{worker.node}-0", num_restarts=0)
    yield begin + 25, joined(workers, 0, 1)
    for plan in range(12):  # many small ones as it settles
        yield begin + 28 + 0.1 * plan, planned(workers, shares_of(speeds), plan, plan % 2)
    for number in range(1, num_exchanges + 1):
        yield from _exchange(begin + 30 + number, number, workers, speeds, metric)
    if is_over:
        yield now, RunEnded(exit_code=0, reason="all workers have finished")


def joined(workers: tuple[WorkerId, ...], applied_steps: int, number: int) -> WorkersJoined:
    """A membership."""
    return WorkersJoined(
        rendezvous_id=number,
        workers=workers,
        applied_steps=applied_steps,
        global_batch_size=BATCH,
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
    )


def planned(
    workers: tuple[WorkerId, ...], shares: tuple[int, ...], number: int, more: int
) -> BatchPlan:
    """A plan; the last worker has some more samples of the first."""
    return BatchPlan(
        rendezvous_id=1,
        plan_id=number,
        from_step=STEPS_PER_EXCHANGE * number,
        exchange_steps=STEPS_PER_EXCHANGE,
        workers=workers,
        local_batch_sizes=(shares[0] - more, *shares[1:-1], shares[-1] + more),
        reason="faster",
    )


def _exchange(
    at: float, number: int, workers: tuple[WorkerId, ...], speeds: tuple[float, ...], metric: str
) -> Iterator[tuple[float, Event]]:
    """The steps since the one before, and what is told of them."""
    loss = 2.3 * math.exp(-number / 70) + 0.05 + 0.05 * math.sin(2.3 * number)
    yield from ((at, event) for event in _incidents(number, workers))
    yield at, _timed(number, workers, speeds, loss)
    yield from ((at, event) for event in _told(number, loss, metric))
    yield from ((at, _sampled(worker.node)) for worker in workers)


def _incidents(number: int, workers: tuple[WorkerId, ...]) -> Iterator[Event]:
    step, slow, lost = STEPS_PER_EXCHANGE * number, workers[1 % len(workers)], workers[-1]
    if number == SLOW:
        yield StragglerReported(
            step=step, worker=slow, is_slow=True, speed_ratio=0.6, cause="input"
        )
    if number == WELL:
        yield StragglerReported(step=step, worker=slow, is_slow=False, speed_ratio=1.0, cause=None)
    if number == LOST:
        words = "was ended by signal 9 (SIGKILL)"
        yield WorkerExited(worker=lost, host=f"{lost.node}-0", exit_code=137, words=words)
        yield joined(workers, step, 2)


def _timed(
    number: int, workers: tuple[WorkerId, ...], speeds: tuple[float, ...], loss: float
) -> StepsTimed:
    shares = shares_of(speeds)
    slow = workers[1 % len(workers)]
    data = [0.12 if worker == slow and SLOW <= number < WELL else 0.0 for worker in workers]
    longest = max(
        0.92 * 0.002 * s / v + 0.02 + d for s, v, d in zip(shares, speeds, data, strict=True)
    )
    rows = [_row(s, v, longest, number, d) for s, v, d in zip(shares, speeds, data, strict=True)]
    return StepsTimed(
        rendezvous_id=1 if number < LOST else 2,
        step=STEPS_PER_EXCHANGE * number - 1,
        epoch=number // EPOCH,
        loss=loss,
        timings=tuple(rows),
        exchange_seconds=0.001,
    )


def _told(number: int, loss: float, metric: str) -> Iterator[Event]:
    """What the training logs, and its evaluations with a checkpoint."""
    step, epoch = STEPS_PER_EXCHANGE * number, number // EPOCH
    values = {
        name: LoggedValue(
            step=step, count=10, mean=value, minimum=value * low, maximum=value / low, last=value
        )
        for name, value, low in (("loss", loss, 0.95), ("learning_rate", 0.1 * 0.5**epoch, 1.0))
    }
    yield Logged(step=step, epoch=epoch, values=values, remaining_steps=TOTAL_STEPS - step)
    if 2 * number % EPOCH == 0:
        found = {metric: 1 - 0.9 * math.exp(-number / 60)}
        yield Evaluated(epoch=epoch, step=step, metrics=found)
        path = f"/checkpoints/{step}"
        yield CheckpointWritten(step=step, path=path, num_bytes=10, metrics=found, is_best=True)


def _sampled(node: str) -> NodeSampled:
    gpu = DeviceSample(
        index=0, name="NVIDIA H100 80GB HBM3", use_ratio=0.9, memory_used_bytes=60 * 2.0**30,
        memory_total_bytes=80 * 2.0**30, temperature_celsius=61.0, power_watts=500.0,
    )  # fmt: skip
    return NodeSampled(
        node=node, seconds=1.0, cpu_use_ratio=0.3, memory_used_bytes=2.0**36,
        memory_total_bytes=2.0**38, devices=(gpu,),
    )  # fmt: skip


class ShownRun:
    """A server with the page of such a run, in a loop of its own; in a folder with its record.

    Args:
        folder: Of its record; the page lists what is beside it.
        events: That have happened.
        settings: Of the server.

    Attributes:
        orders: That were taken.
    """

    def __init__(
        self,
        folder: Path,
        events: list[tuple[float, Event]],
        **settings: Any,  # noqa: ANN401 - of `JobConfig`
    ) -> None:
        self.orders: list[object] = []
        self.folder = folder
        self._diagnoser = Diagnoser()
        self._view = LiveView(self._diagnoser.findings)
        self._plots = RunPlots()
        self._tables = StepTables()
        self.take(events)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.web = Web(JobConfig(**settings), folder)
        self._call(self.web.listen(self._sources()))

    def take(self, events: list[tuple[float, Event]]) -> None:
        """More has happened."""
        for at_seconds, event in with_tables(events, self._tables):
            self._diagnoser.observe(event)
            self._plots.observe(at_seconds, event)
            self._view.observe(at_seconds, event)

    def _sources(self) -> Sources:
        def order(what: str) -> Callable[..., str]:
            def taken(*more: object) -> str:
                self.orders.append((what, *more))
                return f"{what} is under way"

            return taken

        return Sources(
            state=self._view.state,
            num_events=lambda: self._view.num_events,
            status=lambda: {"state": "training"},
            targets=list,
            drain=order("drain"),
            stop=order("stop"),
            trace=order("trace"),
            plots=self._plots.view,
            folder=self.folder,
        )

    def _call(self, work: Coroutine[Any, Any, Any]) -> object:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def close(self) -> None:
        """End it all, if that is not done."""
        if self._loop.is_closed():
            return
        self._call(self.web.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def write_run(folder: Path, events: list[tuple[float, Event]]) -> Path:
    """A run's record and its report.html; gives the path of that."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder, log, judge = Recorder(folder), TimingLog(folder), Diagnoser()
    for at_seconds, event in with_tables(events):
        judge.observe(event)
        recorder.observe(at_seconds, event)
        if isinstance(event, WorkersJoined | StepsTimed):
            log.write(at_seconds, event)
    recorder.observe(events[-1][0], Judged(step=0, findings=tuple(judge.findings())))
    recorder.close()
    log.close()
    write_report(folder)
    return folder / "report.html"
