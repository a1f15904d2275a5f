"""What is made of runs with and without staleness; the runs themselves are measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.comparisons import modes, staleness_loss
from benchmarks.comparisons.modes import MODES, STALE, SYNCHRONOUS, measure
from benchmarks.peers import Run
from benchmarks.tables import QUICK
from hetero_hvd.errors import JobError


def row(size, step_seconds, *, wait=0.0, hidden=None, under_way=None, lag=None, num_steps=10):
    """One worker's timings, as the driver writes them."""
    return {
        "num_steps": num_steps,
        "local_batch_size": size,
        "step_seconds": step_seconds,
        "comm_wait_seconds": wait,
        "overlapped_comm_seconds": hidden,
        "staleness_steps": under_way,
        "lag_steps": lag,
    }


def run_of(*tables, num_steps=40):
    """A run with one table each ten steps."""
    return Run(
        step_seconds=(0.1,) * num_steps,
        losses=(),
        accuracies=(),
        timings=tables,
        table_steps=tuple(range(9, 10 * len(tables), 10)),
    )


def test_the_second_half_of_a_run_counts():
    """Samples of all workers a second, and parts of the step as a mean over steps and workers."""
    start = (row(1, 9.0), row(1, 9.0))
    first = (
        row(30, 0.1, wait=0.02, hidden=0.05, under_way=1.0, lag=0.0),
        row(10, 0.1, wait=0.0, hidden=0.05, under_way=1.0, lag=1.0),
    )
    second = (
        row(30, 0.2, wait=0.04, hidden=0.1, under_way=1.0, lag=0.0, num_steps=30),
        row(10, 0.2, wait=0.0, hidden=0.1, under_way=1.0, lag=1.0, num_steps=30),
    )
    found = measure(run_of(start, start, first, second), bound=1)
    assert found.samples_per_second == pytest.approx(40 / 0.175)
    assert found.wait_seconds == pytest.approx(0.0175)
    assert found.wait_ratio == pytest.approx(0.1)
    assert found.hidden_ratio == pytest.approx(0.5)
    assert (found.staleness_steps, found.lag_steps) == (1.0, (0.0, 1.0))


def test_a_run_that_fell_back_is_no_measurement():
    """With nothing under way, or no table at all, there is an error instead of a number."""
    table = (row(30, 0.1, under_way=0.0, lag=0.0),) * 2
    with pytest.raises(JobError, match=r"0\.00 steps under way instead of 2: did the loss diverge"):
        measure(run_of(table, table, table, table), bound=2)
    with pytest.raises(JobError, match="no timings in the second half"):
        measure(run_of(table), bound=0)


def test_ratios_are_taken_within_a_repeat():
    """A machine that is half as fast in the second repeat changes no ratio."""
    effort, seen = replace(QUICK, repeats=2, num_steps=40), []

    def run_mode(mode, repeat, num_steps):
        seen.append((mode, repeat))
        bound = MODES[mode].get("staleness_bound", 1)
        seconds = 0.1 * (1 + repeat) / (1 + 0.1 * bound)
        return run_of(*[(row(5, seconds, under_way=float(bound)),) * 2] * 4, num_steps=num_steps)

    found = modes.take_turns(run_mode, effort, [].append)
    assert seen == [(mode, repeat) for repeat in (0, 1) for mode in MODES]
    assert modes.ratios_of(found, STALE) == pytest.approx([1.1, 1.1])
    number = modes.ratio("a case", found, goal=1.12)
    assert (number.found, number.is_reached) == ("1.100 x (1.100 to 1.100)", False)
    table = modes.table_of("Title", "Text.", found, ideal=200.0)
    assert [cells[0] for cells in table.rows] == list(MODES)
    assert all(len(cells) == len(table.columns) for cells in table.rows)
    assert table.rows[1][-1] == "0.413 (0.275 to 0.550)"
    assert table.measured[STALE] == pytest.approx([1.1, 1.1])


def test_a_repeat_counts_only_if_all_modes_were_measured():
    """A failed run costs its repeat; where all fail, there is an error."""
    effort, said = replace(QUICK, repeats=2, num_steps=40), []

    def run_mode(mode, repeat, num_steps):
        if (mode, repeat) == (STALE, first_failure):
            raise JobError("an accident")
        bound = float(MODES[mode].get("staleness_bound", 0))
        return run_of(*[(row(5, 0.1, under_way=bound),)] * 4, num_steps=num_steps)

    first_failure = 0
    found = modes.take_turns(run_mode, effort, said.append)
    assert [len(found[mode]) for mode in MODES] == [1] * len(MODES)
    assert "1 of 2: failed, an accident" in said
    with pytest.raises(JobError, match="no repeat was complete"):
        modes.take_turns(run_mode, replace(effort, repeats=1), said.append)


def test_losses_are_compared_seed_by_seed():
    """The number is the median over seeds of the difference to S = 0 with the same seed."""
    variants = staleness_loss.variants()
    assert set(variants) == {*MODES, staleness_loss.CHANCE}
    job = {"task": "a task", "num_steps": 10, "batch_size": 4, "seeds": [0, 1, 2]}
    losses = {
        SYNCHRONOUS: [1.0, 2.0, 4.0],
        STALE: [1.02, 2.06, 4.0],
        staleness_loss.CHANCE: [2.0, 2.0, 2.0],
    }
    found = [
        {"variant": variant, "seed": seed, "held_out": loss, "training": loss, "ended": ""}
        for variant, of in losses.items()
        for seed, loss in enumerate(of)
    ]
    table = staleness_loss.table_of(job, found)
    (number,) = table.numbers
    assert (number.found, number.is_reached) == ("+2.0% (+0.0% to +3.0%)", False)
    assert table.rows[2][2] == "+0.0% (-50.0% to +100.0%)"
