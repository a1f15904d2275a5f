"""A program is idle while its GPUs compute nothing, or it hardly uses a processor without one."""

import math

import pytest

from hetero_hvd.core.guard.idleness import Idleness

LOOKS = {
    "nothing is told": (False, [], 10),
    "a server that waits": (False, [(5, 1.0), (10, 1.1)], 10),
    "one that computes": (False, [(5, 1.0), (10, 3.0)], 0),
    "a child has ended": (False, [(2, 9.0), (8, 1.0), (10, 1.0)], 2),
    "only on its processors": (True, [(5, 1.0), (10, 6.0)], 10),
}
GPU = {"idle": (0.0, 10), "busy": (0.01, 4), "not told": (math.nan, 4)}


@pytest.mark.parametrize(("has_gpu", "looks", "idle"), LOOKS.values(), ids=LOOKS)
def test_processors(has_gpu, looks, idle):
    """So long at ten seconds; processor time counts where there is no GPU."""
    idleness = Idleness(has_gpu=has_gpu, now_seconds=0.0)
    for at_seconds, used_seconds in looks:
        idleness.processor(used_seconds, at_seconds)
    assert idleness.seconds(10.0) == idle


@pytest.mark.parametrize(("use_ratio", "idle"), GPU.values(), ids=GPU)
def test_gpus(use_ratio, idle):
    """A figure that is missing is no idleness."""
    idleness = Idleness(has_gpu=True, now_seconds=0.0)
    idleness.gpu(use_ratio, 6.0)
    assert idleness.seconds(10.0) == idle
