"""Slows this worker's compute down honestly, to try a mixed cluster on one machine."""

from __future__ import annotations

import time

import numpy as np

from hetero_hvd.core.simulation.jitter import DEFAULT_SPIKE_RATIO, Jitter
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import EmulateSettings

NOBODY = WorkerId("localhost", 0)


class Emulation:
    """Holds the compute of a step back; the time held is part of what is measured.

    Either every measured piece of compute is stretched by 1 / `relative_speed`, or the whole step's
    compute is held until `overhead_seconds + seconds_per_sample * x` after its start, which stays
    true when the machine has fewer cores than workers. Both times a factor that is drawn anew for
    each step, from a seed and the worker's name: the same in every run, another one on each worker.

    Args:
        relative_speed: 0 < speed <= 1, or None.
        seconds_per_sample: > 0, or None.
        overhead_seconds: >= 0.
        jitter: What the factors are drawn from.
        seed: For the factors, >= 0.
        worker: Whose factors.
    """

    def __init__(
        self,
        *,
        relative_speed: float | None = None,
        seconds_per_sample: float | None = None,
        overhead_seconds: float = 0.0,
        jitter: Jitter | None = None,
        seed: int = 0,
        worker: WorkerId = NOBODY,
    ) -> None:
        self._relative_speed = relative_speed
        self._seconds_per_sample = seconds_per_sample
        self._overhead_seconds = overhead_seconds
        self._jitter = jitter
        self._random = np.random.default_rng([seed, worker.slot, *worker.node.encode()])
        self._factor = self._draw()
        self._time_ratio = 1.0

    @classmethod
    def of(cls, settings: EmulateSettings | None, worker: WorkerId = NOBODY) -> Emulation | None:
        """The emulation that a node's settings ask for.

        Args:
            settings: What nodes.yaml says of the node.
            worker: Whose.
        """
        if settings is None:
            return None
        jitter = Jitter(
            noise_ratio=settings.noise_ratio,
            spike_probability=settings.spike_probability,
            spike_ratio=settings.spike_ratio or DEFAULT_SPIKE_RATIO,
        )
        return cls(
            relative_speed=settings.relative_speed,
            seconds_per_sample=settings.seconds_per_sample,
            overhead_seconds=settings.overhead_seconds,
            jitter=jitter if jitter.mean > 1 else None,
            seed=settings.noise_seed,
            worker=worker,
        )

    def slow_down(self, ratio: float) -> None:
        """From now on its compute takes `ratio` times as long."""
        self._time_ratio *= ratio

    def stretch(self, since: float) -> None:
        """Sleep until the piece of compute that began at `since` has taken its emulated time.

        Args:
            since: `time.perf_counter()` at its start.
        """
        if self._relative_speed is not None:
            elapsed = time.perf_counter() - since
            ratio = self._time_ratio * self._factor / self._relative_speed
            time.sleep(max(0.0, elapsed * ratio - elapsed))

    def hold(self, since: float, num_samples: int, *, is_last: bool = True) -> None:
        """Sleep until a whole step's compute that began at `since` has taken its emulated time.

        Args:
            since: `time.perf_counter()` at its start.
            num_samples: Samples that it processed; 0 takes no time.
            is_last: Whether the step ends here; its parts all take the same factor.
        """
        if self._seconds_per_sample is not None and num_samples:
            seconds = self._overhead_seconds + self._seconds_per_sample * num_samples
            deadline = since + self._time_ratio * self._factor * seconds
            time.sleep(max(0.0, deadline - time.perf_counter()))
        if is_last:
            self._factor = self._draw()

    def _draw(self) -> float:
        return 1.0 if self._jitter is None else float(self._jitter.factors(self._random, 1)[0])
