"""Every few steps all workers learn all timings, the newest plan and what the driver wants of them.

One small float64 allgather, submitted after step k and read after step k+1 (k+1+S with staleness
bound S), so that it hides behind compute. Where a worker has changed or a plan is new all wait for
it at once, so that the next step has the plan already. Rank 0's rows also carry the plan and the
flags, and behind each worker's rows comes what it has to tell who leads the run, if anything; so
every worker holds the same table, the same plan and the same wishes after the same step, and all of
them act at the same step.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import fields

from hetero_hvd.core.balance.pace import HURRIED_STEPS
from hetero_hvd.messages import PHASES, BatchPlan, StepsTimed, StepTiming, WorkerId
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.comm.horovod import Collective, Handle

FIELDS = StepTiming.__struct_fields__
COUNTS = tuple(field.name for field in fields(StepTiming) if field.type is int)
WIDTH = len(FIELDS) + 1
"""Numbers in a row of the table: the timings, and how many bytes follow behind it."""

BYTES = 8
"""Of a number."""

HEAD = 4
"""Numbers that rank 0 says before the shares."""

RESET = 1
STOP = 2

FOLLOWS = ("other_seconds", "overlapped_comm_seconds")
"""Columns that follow from others."""

MEANS = tuple(
    name
    for name in FIELDS
    if name.endswith(("_seconds", "_steps")) and name not in (*COUNTS, *FOLLOWS)
)
"""Columns that are means over the steps of a row; of a step they are told without their unit."""


@dataclass(frozen=True, kw_only=True)
class TimingTable:
    """What one exchange told every worker.

    Attributes:
        step: Index of the step after which it was submitted.
        timings: One row per worker in rank order.
        plan: The plan to follow from `plan.from_step`.
        reset: All workers are to enter a new rendezvous now.
        stop: All workers are to leave now.
        blocked_seconds: Time this worker's training loop spent on the exchange.
        payloads: What each worker has sent along, in rank order; mostly empty.
    """

    step: int
    timings: tuple[StepTiming, ...]
    plan: BatchPlan
    reset: bool
    stop: bool
    blocked_seconds: float
    payloads: tuple[bytes, ...]

    def as_event(self, rendezvous_id: int, epoch: int, loss: float) -> StepsTimed:
        """What who plans is told of it.

        Args:
            rendezvous_id: Of the membership.
            epoch: In which it was submitted.
            loss: Of the step before that.
        """
        return StepsTimed(
            rendezvous_id=rendezvous_id,
            step=self.step,
            epoch=epoch,
            loss=loss,
            timings=self.timings,
            exchange_seconds=self.blocked_seconds,
        )


class TimingExchange:
    """The exchange of one membership.

    Args:
        collective: The rendezvous.
        workers: Its members in rank order.
        plan: The plan that all of them start with.
        prefetch_steps: The largest over all members; no plan may take effect within it.
        staleness_bound: Steps that may be under way after a step.
    """

    def __init__(
        self,
        collective: Collective,
        workers: tuple[WorkerId, ...],
        plan: BatchPlan,
        prefetch_steps: int,
        staleness_bound: int = 0,
    ) -> None:
        self._collective = collective
        self._workers = workers
        self._plan = plan
        self._prefetch_steps = prefetch_steps
        self._staleness_bound = staleness_bound
        self._handle: Handle = None
        self._step = -1
        self._next_step = plan.from_step
        self._reason = plan.reason
        self._sent_plan_id = plan.plan_id
        self._hurry_until = -1
        self._is_at_once = False

    def is_due(self, step: int) -> bool:
        """Whether an exchange is due after this step; the same answer on every worker."""
        return self._handle is None and step >= self._next_step

    def hurry(self, step: int) -> None:
        """Exchange after this step and some more, and wait for it; all call it after the same step.

        With steps under way nobody waits: it would hold up those that are ahead.
        """
        self._hurry_until = step + HURRIED_STEPS
        self._next_step = min(self._next_step, step)

    def submit(
        self,
        step: int,
        timing: StepTiming,
        newest: BatchPlan | None,
        flags: int,
        payload: bytes = b"",
    ) -> None:
        """Send this worker's row, with the payload behind it; on rank 0 also plan and flags.

        The plan's `from_step` is stamped here: the step after the one during which all will read
        it, and beyond what anybody may have loaded ahead.
        """
        self._is_at_once = step < self._hurry_until and not self._staleness_bound
        row = [float(getattr(timing, field)) for field in FIELDS]
        rows = [[*row, float(len(payload))]]
        if self._collective.rank == 0:
            plan = self._plan
            if newest is not None and self.is_news(newest):
                plan = newest
            read_after = step if self._is_at_once else step + 1 + self._staleness_bound
            first = read_after + 1 + self._prefetch_steps
            from_step = plan.from_step if plan is self._plan else max(plan.from_step, first)
            head = [plan.plan_id, from_step, plan.exchange_steps, flags]
            rows += _in_rows([*head, *plan.local_batch_sizes])
            self._reason = plan.reason
            self._sent_plan_id = plan.plan_id
        table = torch.tensor(rows, dtype=torch.float64)
        if payload:
            table = torch.cat([table, _packed(payload)])
        self._handle = self._collective.gather_rows_async(table, "timings")
        self._step = step

    def is_awaited(self, step: int) -> bool:
        """Whether the exchange under way is to be read after this step; the same on all workers."""
        is_time = self._is_at_once or step > self._step + self._staleness_bound
        return self._handle is not None and is_time

    def read_after(self, step: int, clock: PhaseClock) -> TimingTable | None:
        """The table, if it is to be read after this step.

        Args:
            step: The step that has just been taken.
            clock: Its phases; to wait here is to wait for the others.

        Raises:
            Interrupted: The rendezvous broke.
        """
        if not self.is_awaited(step):
            return None
        with clock.phase("comm_wait"):
            return self.read()

    def read(self) -> TimingTable | None:
        """The table, if an exchange is under way; blocks until it is complete.

        Raises:
            Interrupted: The rendezvous broke.
        """
        if self._handle is None:
            return None
        began = time.perf_counter()
        table = self._collective.wait(self._handle)
        blocked_seconds = time.perf_counter() - began
        self._handle = None
        told, payloads, numbers = self._parts(table)
        plan_id, from_step, exchange_steps, flags = numbers[:4]
        if plan_id != self._plan.plan_id:
            self._plan = BatchPlan(
                rendezvous_id=self._plan.rendezvous_id,
                plan_id=plan_id,
                from_step=from_step,
                exchange_steps=exchange_steps,
                workers=self._workers,
                local_batch_sizes=tuple(numbers[4 : 4 + len(self._workers)]),
                reason=self._reason,
            )
        is_hurried = self._step + 1 < self._hurry_until
        self._next_step = self._step + (1 if is_hurried else self._plan.exchange_steps)
        return TimingTable(
            step=self._step,
            timings=tuple(map(_timing, told)),
            plan=self._plan,
            reset=bool(flags & RESET),
            stop=bool(flags & STOP),
            blocked_seconds=blocked_seconds,
            payloads=tuple(payloads),
        )

    def _parts(self, table: torch.Tensor) -> tuple[list[list[float]], list[bytes], list[int]]:
        """Each worker's row and payload, and what rank 0 says between its own two."""
        rows, payloads, numbers = [], [], []
        at = 0
        for rank in range(len(self._workers)):
            *row, num_bytes = table[at].tolist()
            at += 1
            if rank == 0:
                end = at + _num_rows(HEAD + len(self._workers))
                numbers = [int(number) for number in table[at:end].flatten().tolist()]
                at = end
            end = at + _num_rows(math.ceil(num_bytes / BYTES))
            payloads.append(_unpacked(table[at:end], int(num_bytes)))
            at = end
            rows.append(row)
        return rows, payloads, numbers

    def is_news(self, plan: BatchPlan | None) -> bool:
        """Whether this plan, the newest that rank 0 has, was not sent to the others yet."""
        return (
            plan is not None
            and plan.rendezvous_id == self._plan.rendezvous_id
            and plan.plan_id > self._sent_plan_id
            and plan.workers == self._workers
        )


def _num_rows(num_numbers: int) -> int:
    return math.ceil(num_numbers / WIDTH)


def _in_rows(numbers: list[int]) -> list[list[float]]:
    padded = [float(number) for number in numbers] + [0.0] * (-len(numbers) % WIDTH)
    return [padded[start : start + WIDTH] for start in range(0, len(padded), WIDTH)]


def _packed(payload: bytes) -> torch.Tensor:
    """Bytes as rows of the table, which nobody computes with on the way."""
    padded = bytearray(_num_rows(math.ceil(len(payload) / BYTES)) * WIDTH * BYTES)
    padded[: len(payload)] = payload
    return torch.frombuffer(padded, dtype=torch.float64).reshape(-1, WIDTH)


def _unpacked(rows: torch.Tensor, num_bytes: int) -> bytes:
    return rows.contiguous().numpy().tobytes()[:num_bytes]


def _timing(row: list[float]) -> StepTiming:
    values: dict[str, Any] = dict(zip(FIELDS, row, strict=True))
    return StepTiming(**{**values, **{name: int(values[name]) for name in COUNTS}})


class TimingWindow:
    """This worker's timings since the last exchange.

    Args:
        shares_vary: Whether shares differ from step to step, so that their mean tells more than the
            steps with the last one.
    """

    def __init__(self, *, shares_vary: bool = False) -> None:
        self._shares_vary = shares_vary
        self._share = -1
        self._num_samples = self._num_steps = 0
        self._sums: dict[str, float] = {}

    def add(self, share: int, seconds: dict[str, float], *, planned: int) -> None:
        """Add one step; a step with another share than the ones before starts the window anew.

        The smaller batch at the end of an epoch does not, and is not told beside whole ones: else
        it alone would be told of, wherever an exchange falls on it.

        Args:
            share: Samples of this worker in the step.
            seconds: Columns of `StepTiming`, without their unit, to the value of this step; and
                `reducing`, seconds with a reduction under way.
            planned: Its samples in a whole batch, by the plan of the step.
        """
        if share != self._share and not self._shares_vary:
            if share < planned == self._share and self._num_steps:
                return
            self._num_samples = 0
            self._num_steps = 0
            self._sums = {}
        self._share = share
        self._num_samples += share
        self._num_steps += 1
        for name, value in seconds.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def take(self) -> StepTiming:
        """The means of the window, which is empty afterwards; NaN where nothing was measured."""
        count = self._num_steps
        share = round(self._num_samples / count) if count else max(0, self._share)
        means = {name: total / count for name, total in self._sums.items()}
        self._num_samples = 0
        self._num_steps = 0
        self._sums = {}
        columns: dict[str, Any] = {}
        for name in MEANS:
            told, _, unit = name.rpartition("_")
            is_spent = count and unit == "seconds"
            columns[name] = means.get(told, 0.0 if is_spent else math.nan)
        # On a device's own clock phases may lie beside each other: then there is no rest. (`max`
        # gives its first argument, if that is NaN.)
        in_phases = sum(columns[f"{phase}_seconds"] for phase in PHASES)
        columns["other_seconds"] = max(columns["step_seconds"] - in_phases, 0.0)
        hidden = means.get("reducing", math.nan) - columns["comm_wait_seconds"]
        columns["overlapped_comm_seconds"] = max(hidden, 0.0)
        return StepTiming(num_steps=count, local_batch_size=share, memory_bytes=math.nan, **columns)
