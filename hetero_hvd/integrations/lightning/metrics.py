"""The metric objects of a module, whose states several workers have updated, each in its part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torchmetrics import Metric

State = dict[str, Any]
"""Name to tensor or list of tensors, and how often the metric was updated."""

COUNT = "update count"


class ModuleMetrics:
    """All metric objects of a module.

    Args:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._metrics = {
            name: found for name, found in module.named_modules() if isinstance(found, Metric)
        }

    @property
    def are_there(self) -> bool:
        """Whether the module has any."""
        return bool(self._metrics)

    def take(self) -> dict[str, State]:
        """The states of those that were updated; then they are as new."""
        taken = {}
        for name, metric in self._metrics.items():
            count = metric._update_count
            if count:
                states = {each: _copied(getattr(metric, each)) for each in metric._reductions}
                taken[name] = states | {COUNT: count}
            metric.reset()
        return taken

    def put(self, parts: Sequence[dict[str, State]]) -> set[str]:
        """Let each metric hold what it has found in all parts, in their order.

        Returns:
            Places of the metrics that were found in any.
        """
        found = set()
        for name, metric in self._metrics.items():
            states = [part[name] for part in parts if name in part]
            if states:
                _put(metric, states)
                found.add(name)
        return found

    def reset(self, places: Iterable[str]) -> None:
        """Let these be as new; where the leader alone keeps a state, it is not counted twice."""
        for place in places:
            self._metrics[place].reset()

    def find(self, place: str) -> Metric:
        """A metric by its place in the module."""
        return self._metrics[place]


def _put(metric: Metric, states: Sequence[State]) -> None:
    metric.reset()
    for name, reduction in metric._reductions.items():
        values = [state[name] for state in states]
        if isinstance(values[0], list):
            merged: Any = [item.to(metric.device) for value in values for item in value]
        elif len(values) == 1:
            merged = values[0].to(metric.device)
        else:
            stacked = torch.stack(values).to(metric.device)
            merged = stacked if reduction is None else reduction(stacked)  # type: ignore[operator]
        setattr(metric, name, merged)
    metric._update_count = sum(state[COUNT] for state in states)
    metric._computed = None


def _copied(value: Any) -> Any:  # noqa: ANN401 - a tensor or a list of them
    if isinstance(value, list):
        return [item.detach().cpu() for item in value]
    return value.detach().clone().cpu()
