"""How much steps of one worker differ in time: log-normal noise, and now and then a spike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

DEFAULT_SPIKE_RATIO = 3.0


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Random factors of step times; their median is 1 without spikes.

    Attributes:
        noise_ratio: Coefficient of variation of the log-normal noise, >= 0.
        spike_probability: Of a step to take `spike_ratio` times as long, 0 to 1.
        spike_ratio: See above, >= 1.
    """

    noise_ratio: float = 0.0
    spike_probability: float = 0.0
    spike_ratio: float = DEFAULT_SPIKE_RATIO

    @property
    def mean(self) -> float:
        """Expected factor: sqrt(1 + CV^2) of the log-normal, times that of the spikes."""
        spikes = 1 + self.spike_probability * (self.spike_ratio - 1)
        return math.sqrt(1 + self.noise_ratio**2) * spikes

    def factors(
        self, random: np.random.Generator, count: int
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Draw factors for `count` workers, or for `count` steps of one.

        Returns:
            Shape (count,), float64, > 0.
        """
        sigma = math.sqrt(math.log1p(self.noise_ratio**2))
        factors = np.exp(random.normal(0.0, sigma, count))
        if self.spike_probability:
            spikes = random.random(count) < self.spike_probability
            factors = np.where(spikes, factors * self.spike_ratio, factors)
        return factors
