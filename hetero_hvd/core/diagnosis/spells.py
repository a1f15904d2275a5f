"""What binds a run now and then: an evaluation every tenth step is long over before the next one.

Averages over a fixed number of exchanges see such a thing late, and forget it between two spells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from hetero_hvd.messages import FindingKind

FEWEST_SPELLS = 2
"""Once is an accident."""

LONG_RATIO = 1.25
"""An exchange whose steps take so many times the usual is a part of a spell, not of the noise."""

MOST_GAPS = 2.0
"""It is over when its next spell is late by this many times the steps between two of them."""


@dataclass(frozen=True)
class Recurring:
    """Something that comes again.

    Attributes:
        kind: What binds the run in each of its spells.
        since_step: First step of its first spell that is remembered.
    """

    kind: FindingKind
    since_step: int


@dataclass(frozen=True)
class _Exchange:
    first_step: int
    kind: FindingKind | None
    step_seconds: float


class Spells:
    """Remembers what each of the newest exchanges was bound by.

    Args:
        num_exchanges: To be remembered.
    """

    def __init__(self, num_exchanges: int) -> None:
        self._exchanges: deque[_Exchange] = deque(maxlen=num_exchanges)

    def clear(self) -> None:
        """Forget all, as the workers or their shares have changed."""
        self._exchanges.clear()

    def observe(self, first_step: int, kind: FindingKind | None, step_seconds: float) -> None:
        """Take the next exchange.

        Args:
            first_step: Of those that it contains.
            kind: What it would be bound by, were it the only one; None: not known.
            step_seconds: Mean duration of its steps, on the worker that took longest, in seconds.
        """
        self._exchanges.append(_Exchange(first_step, kind, step_seconds))

    def recurring(self, step: int) -> Recurring | None:
        """What has come at least twice and is not over; of several, what came last.

        Args:
            step: The newest one.
        """
        if not self._exchanges:
            return None
        usual = median(found.step_seconds for found in self._exchanges)
        spells: dict[FindingKind, list[int]] = {}
        runs = groupby(
            self._exchanges,
            key=lambda found: found.kind if found.step_seconds > LONG_RATIO * usual else None,
        )
        for kind, exchanges in runs:
            if kind is not None:
                spells.setdefault(kind, []).append(next(exchanges).first_step)
        lasting = [kind for kind, begins in spells.items() if _lasts(begins, step)]
        kind = max(lasting, key=lambda found: spells[found][-1], default=None)
        return None if kind is None else Recurring(kind, spells[kind][0])


def _lasts(begins: Sequence[int], step: int) -> bool:
    if len(begins) < FEWEST_SPELLS:
        return False
    gap = (begins[-1] - begins[0]) / (len(begins) - 1)
    return step - begins[-1] <= MOST_GAPS * gap
