"""Passes that take a given time, whoever takes the steps of the model; ways to do so, in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch

from hetero_hvd.worker.session.worker_context import init

NUM_WARMUP_STEPS = 25
"""Until timings are exchanged once a second, as in all later steps."""


class HeldPasses:
    """Holds each step of a model from the begin of its forward pass to its last gradient.

    What a step takes longer is overhead: of whatever is between two steps, and of the reduction.

    Args:
        seconds: What the passes of a step take at least.
        last: The parameter whose gradient comes last.
    """

    def __init__(self, seconds: float, last: torch.Tensor) -> None:
        self._held_seconds = seconds
        self._begun_at: list[float] = []
        last.register_post_accumulate_grad_hook(self._hold)

    def begin(self) -> None:
        """A forward pass begins."""
        self._begun_at.append(time.perf_counter())

    def _hold(self, _: torch.Tensor) -> None:
        left = self._begun_at[-1] + self._held_seconds - time.perf_counter()
        if left > 0:  # even a sleep of 0 takes its time
            time.sleep(left)

    def step_seconds(self) -> float:
        """From one forward pass to the next, on average, without those at the start.

        What happens in one step of many counts, too: a log, or an exchange of timings.
        """
        return fmean(
            after - before for before, after in pairwise(self._begun_at[NUM_WARMUP_STEPS:])
        )


def take_turns(ways: Mapping[str, Callable[[], HeldPasses]], num_rounds: int, folder: Path) -> None:
    """Train in all ways, so many times, and begin each time with the next one.

    The leader leaves result.json: name of the way to the seconds of a step in each round.

    Args:
        ways: Name to what trains a new model; the first starts Horovod.
        num_rounds: How often each trains.
        folder: Of the result.
    """
    names = list(ways)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(num_rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            found[name].append(ways[name]().step_seconds())
    if not init().collective.rank:
        (folder / "result.json").write_text(json.dumps(found))
