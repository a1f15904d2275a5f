"""Simulated clusters for the tests: seeded noise around true step-time curves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from hetero_hvd.core.balance.balancer_state import BalanceConfig
from hetero_hvd.core.balance.policies.registry import make_policy
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.simulation.scenario import Scenario, TrueCurve
from hetero_hvd.core.simulation.simulation import Simulation, row_of


@dataclass(frozen=True)
class Cliff:
    """Like `below`, but `ratio` times slower with more than `edge` samples (memory, say)."""

    below: StepTimeModel
    edge: int
    ratio: float

    def step_seconds(self, local_batch_size: int) -> float:
        """Seconds of a step."""
        seconds = self.below.step_seconds(local_batch_size)
        return seconds * (self.ratio if local_batch_size > self.edge else 1.0)


@dataclass(frozen=True)
class Staircase:
    """A worker that works in micro-batches, each with its own overhead."""

    step: StepTimeModel
    size: int  # not called micro_batch_size: nobody is told

    def step_seconds(self, local_batch_size: int) -> float:
        """Seconds of a step."""
        rounds = -(-local_batch_size // self.size)
        overhead = self.step.overhead_seconds * rounds
        return overhead + self.step.seconds_per_sample * local_batch_size


class Run(Simulation):
    """A simulation whose curves can be set one by one."""

    def __init__(
        self, curves, *, config=None, seed=0, noise=0.05, global_batch_size=512, **scenario
    ):
        described = Scenario(
            curves=tuple(curves),
            global_batch_size=global_batch_size,
            noise_ratio=noise,
            **scenario,
        )
        policy = make_policy(config or BalanceConfig())
        super().__init__(described, policy, np.random.default_rng(seed))

    def set_curve(self, index: int, curve: TrueCurve) -> None:
        """From now on the worker is like that."""
        curves = list(self.scenario.curves)
        curves[index] = curve
        self.scenario = replace(self.scenario, curves=tuple(curves))


def affine(speed: float, overhead_seconds: float = 0.0) -> StepTimeModel:
    """A worker with that many samples per second once its overhead is paid."""
    return StepTimeModel(overhead_seconds=overhead_seconds, seconds_per_sample=1 / speed)


@pytest.fixture(name="simulation")
def simulation_class() -> type[Run]:
    """The simulation's class."""
    return Run


@pytest.fixture(name="affine")
def affine_function():
    """Make a worker of that speed."""
    return affine


@pytest.fixture(name="cliff")
def cliff_class():
    """A worker with a cliff."""
    return Cliff


@pytest.fixture(name="staircase")
def staircase_class():
    """A worker with micro-batches."""
    return Staircase


@pytest.fixture(name="timing")
def timing_function():
    """Make a row."""

    def timing(size, compute, *, wait=0.0, step_seconds=0.0, num=1):
        return row_of(
            size, compute, data_wait_seconds=wait, step_seconds=step_seconds, num_steps=num
        )

    return timing
