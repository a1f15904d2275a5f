"""Names of its own for the sums of one of several models."""

from __future__ import annotations

from typing import Any

import torch

from hetero_hvd.worker.comm.horovod import Collective, Handle

COMMON = "totals"
"""Begins the name of the sums that tell whether all workers take the same step of the same model;
under names of their own workers that do not would wait for each other for ever."""


class NamedCollective:
    """A rendezvous whose sums are named after a model.

    Horovod remembers by its name what an operation looks like. Two models that took turns with one
    name would be negotiated anew in each step.

    Args:
        collective: The rendezvous.
        name: Of the model.
    """

    def __init__(self, collective: Collective, name: str) -> None:
        self._collective = collective
        self._name = name

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 - all else is the rendezvous's
        return getattr(self._collective, attribute)

    def sum_async(self, tensor: torch.Tensor, name: str) -> Handle:
        """See `Collective`."""
        own = name if name.startswith(COMMON) else f"{self._name}.{name}"
        return self._collective.sum_async(tensor, own)


def named(collective: Collective, name: str) -> Collective:
    """The rendezvous under a model's name; itself for one without a name."""
    return NamedCollective(collective, name) if name else collective
