"""What rides on the exchange of timings arrives bit for bit, beside rows and plan."""

from __future__ import annotations

import os

import msgspec
import pytest
from rendezvous import Hub, run_together

from hetero_hvd.messages import BatchPlan, StepTiming, WorkerId
from hetero_hvd.worker.timing.timing_exchange import BYTES, FIELDS, RESET, WIDTH, TimingExchange

ROW = BYTES * WIDTH
SIZES = {
    "nothing": (0, 0, 0),
    "one byte": (1, 0, 0),
    "not from rank 0": (0, 1, 2),
    "whole rows": (ROW, 2 * ROW, 3 * ROW),
    "a byte more and less": (ROW + 1, ROW - 1, BYTES - 1),
    "much": (100_000, 3, 300_000),
}
WORKERS = tuple(WorkerId("node", slot) for slot in range(3))
PLAN = BatchPlan(
    rendezvous_id=1,
    plan_id=3,
    from_step=0,
    exchange_steps=1,
    workers=WORKERS,
    local_batch_sizes=(5, 0, 3),
    reason="a test",
)


@pytest.mark.parametrize("case", SIZES)
def test_payloads_rows_and_plan_reach_all(case):
    """Bytes of any kind, those of signalling NaNs among them."""
    payloads = [os.urandom(size // 2) + b"\xff" * (size - size // 2) for size in SIZES[case]]

    def one(context):
        rank = context.collective.rank
        exchange = TimingExchange(context.collective, WORKERS, PLAN, prefetch_steps=0)
        row = dict.fromkeys(FIELDS, 0.5 + rank) | {"num_steps": 4, "local_batch_size": rank}
        timing = StepTiming(**row | {"micro_batch_size": -1})
        tables = []
        for step in range(2):
            exchange.submit(step, timing, PLAN, RESET, payloads[rank])
            tables.append(exchange.read())
        return tables

    for tables in run_together(Hub(3), one):
        for table in tables:
            assert list(table.payloads) == payloads
            assert [timing.local_batch_size for timing in table.timings] == [0, 1, 2]
            assert [timing.step_seconds for timing in table.timings] == [0.5, 1.5, 2.5]
            assert table.plan == PLAN
            assert (table.reset, table.stop) == (True, False)


READ = {
    "no haste": (False, {}, (1, 2)),
    "haste": (True, {}, (0, 1)),
    "haste, samples are loaded ahead": (True, {"prefetch_steps": 3}, (0, 4)),
    "steps are under way": (False, {"staleness_bound": 2}, (3, 4)),
    "haste, steps are under way": (True, {"staleness_bound": 2}, (3, 4)),
}
"""How an exchange after step 0 is made: the step after which it is read, and that from which on its
plan is in force."""


@pytest.mark.parametrize("case", READ)
def test_a_plan_is_in_force_as_soon_as_all_can_have_it(case):
    """It is waited for at once where there is haste, and where no steps are under way."""
    has_haste, how, expected = READ[case]
    newer = msgspec.structs.replace(PLAN, plan_id=4)

    def one(context):
        settings = {"prefetch_steps": 0} | how
        exchange = TimingExchange(context.collective, WORKERS, PLAN, **settings)
        if has_haste:
            exchange.hurry(0)
        assert exchange.is_due(0)
        timing = StepTiming(**dict.fromkeys(FIELDS, 0.0) | {"num_steps": 0, "local_batch_size": 0})
        exchange.submit(0, timing, newer if context.collective.rank == 0 else None, 0)
        read_after = next(step for step in range(9) if exchange.is_awaited(step))
        table = exchange.read()
        assert table.plan.plan_id == newer.plan_id
        assert not exchange.is_due(0)
        assert exchange.is_due(1)
        return read_after, table.plan.from_step

    assert run_together(Hub(3), one) == [expected] * 3


def test_nothing_to_tell_costs_no_row():
    """The table is as large as it is without payloads."""
    sizes = []

    def one(context):
        exchange = TimingExchange(context.collective, WORKERS[:1], PLAN, prefetch_steps=0)
        gather = context.collective.gather_rows_async

        def counted(rows, name):
            if name != "connections":  # they go with whatever is gathered first
                sizes.append(rows.numel())
            return gather(rows, name)

        context.collective.gather_rows_async = counted
        timing = StepTiming(**dict.fromkeys(FIELDS, 0.0) | {"num_steps": 0, "local_batch_size": 0})
        exchange.submit(0, timing, None, 0)
        exchange.read()

    run_together(Hub(1), one)
    assert sizes == [2 * WIDTH]  # its row, and the plan
