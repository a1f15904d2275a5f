"""Settings that change a training's numbers, compared by jobs that are thrown away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from hetero_hvd.core.advice.race import error_of_a_pair, ratio_of
from hetero_hvd.messages.launch import TriedOptions

AS_IT_IS = "as it is"
SETTINGS: dict[str, dict[str, TriedOptions]] = {
    "batch": {"batch x2": TriedOptions(num_batches=2)},
    "accumulation": {
        f"accumulation x{times}": TriedOptions(num_batches=times, in_pieces=True)
        for times in (2, 4)
    },
    "compression": {"compression fp16": TriedOptions(compression="fp16")},
    "staleness": {"staleness 2": TriedOptions(staleness_bound=2)},
}
"""What is tried of each name of `--over`, beside the job as it is."""

MAX_ROUNDS = 4
"""Each is a start of all workers for each setting."""


class SettingTrial:
    """Which setting is due, and what was found; each round goes the other way.

    Args:
        names: Of `SETTINGS`.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.options = {AS_IT_IS: TriedOptions()}
        for name in names:
            self.options |= SETTINGS[name]
        self._values: dict[str, dict[int, float]] = {name: {} for name in self.options}
        self._verdicts: dict[str, str] = {}

    def due(self) -> Iterator[tuple[int, str]]:
        """Rounds from 0 and names; `measured` or `refused` is called before the next one."""
        for number in range(MAX_ROUNDS):
            names = [name for name in self.options if self._is_open(name)]
            if len(names) < 2:  # noqa: PLR2004 - nothing is left to compare with
                return
            for name in names[::-1] if number % 2 else names:
                if AS_IT_IS in self._verdicts:
                    return
                yield number, name

    def measured(self, number: int, name: str, samples_per_second: float) -> None:
        """What a job did in a round."""
        self._values[name][number] = samples_per_second

    def refused(self, name: str, why: str) -> None:
        """It cannot be measured."""
        self._verdicts[name] = why

    def in_words(self) -> Iterator[str]:
        """A line for each setting."""
        width = max(map(len, self.options))
        for name in self.options:
            values = self._values[name].values()
            speed = f"{median(values):.4g} samples/s" if values else "not measured"
            yield f"{name:{width}}  {speed}  {self._verdict(name)}".rstrip()

    def _is_open(self, name: str) -> bool:
        if name == AS_IT_IS:
            return AS_IT_IS not in self._verdicts
        ratio = ratio_of(self._values[name], self._values[AS_IT_IS], error=self._error)
        return name not in self._verdicts and ratio.low <= 1 <= ratio.high

    @property
    def _error(self) -> float:
        return error_of_a_pair(len(self.options) - 1, MAX_ROUNDS)

    def _verdict(self, name: str) -> str:
        if name in self._verdicts or name == AS_IT_IS:
            return self._verdicts.get(name, "")
        ratio = ratio_of(self._values[name], self._values[AS_IT_IS], error=self._error)
        if math.isnan(ratio.middle):
            return ""
        if ratio.low <= 1 <= ratio.high:
            return "not told apart from the job as it is"
        return f"{ratio.low - 1:+.0%} to {ratio.high - 1:+.0%}"
