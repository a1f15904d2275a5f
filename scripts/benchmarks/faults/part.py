"""How long the survivors of a fault stand still, ours and others: a part of `scripts/bench`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.__main__ import CASES
from benchmarks.tables import Effort, Say, Table

ROWS: tuple[tuple[str, str, int, float | None], ...] = (
    ("kill -9 of one of 4", "kill", 4, 0.5),
    ("the same, 10 million parameters", "kill_large", 4, None),
    ("kill -9 of one of 8", "kill", 8, 0.8),
    ("kill -9 of one of 16", "kill", 16, 1.6),
    ("a second kill -9 0.1 s after the first, of 4", "kill_two", 4, 1.0),
    ("the same, of 8", "kill_two", 8, 1.0),
    ("SIGSTOP of one of 4", "stop", 4, 5.0),
    ("a restarted worker joins 3 others", "join", 4, 0.6),
    ("Elastic Horovod's own launcher, our build: kill -9 of one of 4", "kill_horovod", 4, None),
    ("torchrun with restarts: kill -9 of one of 4", "kill_torchrun", 4, None),
)
"""Name of the row, case, workers, and the goal for the median in seconds."""


def faults(effort: Effort, say: Say) -> Iterator[Table]:
    """From a fault to the next applied step, with stock Elastic Horovod and torchrun beside it."""
    table = Table(
        title="Faults",
        text="Seconds from a fault to the next step that the others apply. One machine, Gloo on "
        "the loopback interface, steps of 20 ms, default settings; see docs/operations/faults.md.",
        columns=("fault", "median, range", "all"),
    )
    for name, case, num_workers, goal in ROWS:
        seconds = []
        for repeat in range(effort.repeats):
            with tempfile.TemporaryDirectory(prefix="hetero-hvd-faults-") as folder:
                seconds.append(CASES[case](Path(folder), num_workers))
            say(f"{name} {repeat + 1} of {effort.repeats}: {seconds[-1]:.2f} s")
        table.add_seconds(name, seconds, goal_seconds=goal, quantity=f"next step after: {name}")
    yield table
