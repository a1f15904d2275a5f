"""The shortest step that workers could make together with other shares than they have.

What a script does between steps, f_i, stays; the rest is proportional to the share, at a speed of
s_i, both as measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from hetero_hvd.messages import StepTiming, WorkerId

Rows = Mapping[WorkerId, StepTiming]
Times = Mapping[WorkerId, float]


class _TimeOfShare(NamedTuple):
    """How long a worker takes for a share."""

    fixed_seconds: float
    samples_per_second: float

    def seconds(self, num_samples: float) -> float:
        """For so many samples; a worker without any still does what is between steps."""
        return self.fixed_seconds + num_samples / self.samples_per_second


def best_seconds(rows: Rows, times: Times) -> float:
    """The shortest time, if samples could be divided as finely as one likes.

    All finish together at T, with shares (T - f_i) s_i that sum to B; nobody's is negative.

    Args:
        rows: Of those in `times` at least, each with a share > 0.
        times: A worker's own time in a step, > 0.
    """
    courses = _courses(rows, times)
    batch = sum(rows[worker].local_batch_size for worker in times)
    taking_part = sorted(courses.values())
    while True:
        work = batch + sum(one.fixed_seconds * one.samples_per_second for one in taking_part)
        best = work / sum(one.samples_per_second for one in taking_part)
        if best >= taking_part[-1].fixed_seconds:
            return max(best, *(one.fixed_seconds for one in courses.values()))
        taking_part.pop()


def best_seconds_in_pieces(rows: Rows, times: Times, undivided: int) -> float:
    """The shortest time with shares of whole pieces; a last, smaller one counts as whole.

    Each piece in turn goes to whoever has it done first, which is the best that can be, as each
    worker's time only grows with its share; the pieces that the best division of all gives to
    everybody are given at once. Cost: O(workers log workers).

    Args:
        rows: See `best_seconds`.
        times: The same.
        undivided: Samples in a piece, >= 1.
    """
    courses = _courses(rows, times)
    left = -(-sum(rows[worker].local_batch_size for worker in times) // undivided)
    best = best_seconds(rows, times)
    given = {}
    for worker, course in courses.items():
        samples = (best - course.fixed_seconds) * course.samples_per_second
        given[worker] = min(left, max(0, int(samples / undivided * (1 - 1e-9))))
        left -= given[worker]
    order = list(courses)
    ends = [
        (courses[worker].seconds((given[worker] + 1) * undivided), index)
        for index, worker in enumerate(order)
    ]
    heapq.heapify(ends)
    for _ in range(left):
        _, index = ends[0]
        worker = order[index]
        given[worker] += 1
        following = courses[worker].seconds((given[worker] + 1) * undivided)
        heapq.heapreplace(ends, (following, index))
    return max(course.seconds(given[worker] * undivided) for worker, course in courses.items())


def _courses(rows: Rows, times: Times) -> dict[WorkerId, _TimeOfShare]:
    found = {}
    for worker, seconds in times.items():
        row = rows[worker]
        fixed = seconds * row.other_seconds / row.own_seconds
        speed = row.local_batch_size / max(1e-9, seconds - fixed)
        found[worker] = _TimeOfShare(fixed, speed)
    return found
