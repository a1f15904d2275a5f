"""State in parts: how much larger a model it allows, what it costs, and a pipeline beside it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.sharding.control_groups import worker_groups
from benchmarks.sharding.largest import RATIO, largest_models
from benchmarks.sharding.pipelines import SPEEDS, pipelines
from benchmarks.tables import Effort, Say, Table


def sharding(effort: Effort, say: Say) -> Iterator[Table]:
    """State in parts: the largest model in unequal memories, time and bytes; beside a pipeline."""
    with worker_groups(len(SPEEDS)) as groups:
        yield pipelines(groups, effort, say)
    with worker_groups(len(RATIO)) as groups:
        yield largest_models(groups, effort, say)
