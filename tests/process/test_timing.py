"""Law: a delay comes back in the column of the phase it was in, and in no other."""

from __future__ import annotations

from statistics import median

import pytest

from hetero_hvd.driver.workers.worker_launch import SLEEPS
from hetero_hvd.probes import horovod_build as horovod_notice

DELAY_SECONDS = 0.15
OWN = ("data_wait", "transfer", "forward", "backward", "optimizer", "other")


@pytest.fixture(scope="module")
def tables(tmp_path_factory, start_workers):
    """Phase in which worker 1 is slow, to the tables that worker 0 passed on."""
    return start_workers(
        tmp_path_factory.mktemp("delays"), "delays", 2, delay_seconds=DELAY_SECONDS, phases=OWN
    )[0]


def typical(tables, rank, column):
    """Median over the steps, without the first one, which warms up."""
    return median(table[rank][f"{column}_seconds"] for table in tables[1:])


@pytest.mark.process
@pytest.mark.parametrize("phase", OWN)
def test_a_delay_comes_back_in_its_own_column(tables, phase):
    """The slow worker's column holds the delay; its other columns do not."""
    for column in (*OWN, "comm_wait"):
        found = typical(tables[phase], 1, column)
        if column == phase:
            assert DELAY_SECONDS <= found < 1.3 * DELAY_SECONDS
        else:
            assert found < 0.3 * DELAY_SECONDS


@pytest.mark.process
@pytest.mark.parametrize("phase", OWN)
def test_the_peer_of_a_slow_worker_waits_in_communication(tables, phase):
    """What a late worker costs the other is its communication wait, never its own busy time."""
    assert 0.7 * DELAY_SECONDS < typical(tables[phase], 0, "comm_wait") < 1.3 * DELAY_SECONDS
    assert sum(typical(tables[phase], 0, column) for column in OWN) < 0.3 * DELAY_SECONDS


@pytest.mark.process
@pytest.mark.parametrize("phase", OWN)
def test_the_step_lasts_as_long_as_its_phases(tables, phase):
    """Both workers' steps last the delay and little more, and the phases account for them."""
    for rank in (0, 1):
        step = typical(tables[phase], rank, "step")
        phases = sum(typical(tables[phase], rank, column) for column in (*OWN, "comm_wait"))
        assert DELAY_SECONDS <= step < 1.5 * DELAY_SECONDS
        assert phases == pytest.approx(step, rel=0.2)


@pytest.mark.process
def test_communication_beside_compute_is_told_from_exposed(run_workers):
    """A slow rest of the backward pass hides the reduction beside it; a slow begin does not."""
    rows = run_workers("overlap", 2, slow_seconds=0.2)[0]
    hidden = typical(rows["rest"], 0, "overlapped_comm")
    assert 0.002 < hidden <= typical(rows["rest"], 0, "backward")
    # What is left of the pass after a slow begin is short, unless the machine takes the processor
    # away just then: a step in which it does not is enough.
    assert min(table[0]["overlapped_comm_seconds"] for table in rows["large"][1:]) < 0.7 * hidden


@pytest.mark.process
@pytest.mark.parametrize("correction", [SLEEPS, "idle-cycles-wait-for-tensors"])
def test_a_worker_with_nothing_to_reduce_takes_no_processor(run_workers, monkeypatch, correction):
    """Horovod's threads sleep while all compute, also where a timeline may be started."""
    if correction not in horovod_notice.corrections():
        pytest.skip("a stock Horovod, whose threads do not sleep")
    if correction == SLEEPS:
        monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    rows = run_workers("idle", 2)
    assert max(row["processor_ratio"] for row in rows) < 0.06


@pytest.mark.process
def test_a_worker_that_waits_takes_no_processor_and_hears_signals(run_workers):
    """It is woken by the end of the operation; a handler does not wait for it."""
    early, late = run_workers("late", 2)
    assert early["sum"] == late["sum"] == [2.0] * 3
    assert early["waited_seconds"] > 0.5
    assert early["processor_ratio"] < 0.1
    (handled_at,) = early["handled_at_seconds"]
    assert 0.3 <= handled_at < 0.6
