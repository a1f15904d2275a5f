"""What sets of workers would do: by their curves, as far as these can be believed."""

from __future__ import annotations

import pytest

from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.cost.placement import step_seconds
from hetero_hvd.messages import WorkerId, WorkersJoined

A, B = WorkerId("a", 0), WorkerId("b", 0)
CURVES = {
    A: StepTimeModel(overhead_seconds=0.1, seconds_per_sample=1e-5),
    B: StepTimeModel(overhead_seconds=0.0, seconds_per_sample=1e-3),
}
LARGEST = {A: 100.0, B: 1.0}


@pytest.mark.parametrize(
    ("workers", "batch", "largest", "seconds"),
    [
        ([A], 150, LARGEST, 0.1015),
        ([A], 151, LARGEST, 1.51 * 0.101),
        ([A], 400, LARGEST, 4 * 0.101),
        ([A], 400, {}, 0.104),
        ([B], 400, LARGEST, 0.4),
        ([A, B], 250, LARGEST, 0.1015),
        ([A, B], 402, LARGEST, 0.202),
        ([A, B], 402, {}, 0.103),
    ],
)
def test_far_beyond_what_was_measured_time_grows_in_proportion(workers, batch, largest, seconds):
    """From the largest share on; the plan knows that, and the others have more then."""
    joined = WorkersJoined(
        rendezvous_id=1,
        workers=(A, B),
        applied_steps=0,
        global_batch_size=batch,
        capacities=(-1, -1),
        prefetch_steps=0,
    )
    found = step_seconds(joined, CURVES, workers, largest)
    assert found == pytest.approx(seconds, rel=0.01)
