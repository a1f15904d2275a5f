"""Exact means over a whole set, from the parts that the workers computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from hetero_hvd.errors import UserError
from hetero_hvd.messages import Evaluated
from hetero_hvd.worker.admission import device
from hetero_hvd.worker.collective import Interrupted
from hetero_hvd.worker.elastic import ElasticState
from hetero_hvd.worker.loader import contiguous_batches
from hetero_hvd.worker.micro_batch import to_device
from hetero_hvd.worker.payloads import gather_bytes

Means = Mapping[str, torch.Tensor | float]
Sums = dict[str, list[tuple[float, float]]]
"""Name to weighted value and weight of each batch, in order."""

Metrics = Means | tuple[Means, torch.Tensor | float]
"""Name to mean over a batch's samples, or (that, weight) where the mean is over something else."""


def evaluate_part(
    model: torch.nn.Module,
    metrics: Callable[..., Metrics],
    loader: DataLoader[Any],
    *,
    shares: Sequence[int],
    rank: int,
    device: torch.device,
    whole: bool = False,
) -> bytes:
    """One worker's weighted means, batch by batch, for `merge`.

    Args:
        model: Put into evaluation mode meanwhile.
        metrics: The user's function.
        loader: The set.
        shares: Relative shares in rank order.
        rank: Which part.
        device: Where the model is.
        whole: Whole batches only, so that the result does not depend on the shares.
    """
    sums: Sums = {}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for num_samples, batch in contiguous_batches(loader, shares, rank, whole=whole):
                moved = to_device(batch, device)
                found = metrics(*moved) if isinstance(moved, tuple | list) else metrics(moved)
                means, weight = found if isinstance(found, tuple) else (found, num_samples)
                _add(sums, means, float(weight))
    finally:
        model.train(was_training)
    return msgspec.msgpack.encode(sums)


def _add(sums: Sums, means: Means, weight: float) -> None:
    if not isinstance(means, Mapping):
        raise UserError(f"metrics returned {type(means).__name__}: must be a dict of name to mean")
    if weight == 0:  # a mean over nothing is NaN: it must not spoil the sum
        return
    for name, mean in means.items():
        sums.setdefault(name, []).append((float(mean) * weight, weight))


def merge(parts: Sequence[bytes]) -> dict[str, float]:
    """The means over the whole set; summed in the set's order, the same number on every worker."""
    sums: Sums = {}
    for part in parts:
        for name, batches in msgspec.msgpack.decode(part, type=Sums).items():
            sums.setdefault(name, []).extend(batches)
    return {
        name: sum(total for total, _ in batches) / sum(weight for _, weight in batches)
        for name, batches in sums.items()
    }


class Evaluations:
    """What all workers evaluate together, each its part; elastic as training is.

    Args:
        model: Of this worker.
        state: Its position holds the results since the last applied step.
        whole: See `evaluate_part`.

    Attributes:
        num_done: By this worker since the last applied step.
    """

    def __init__(self, model: torch.nn.Module, state: ElasticState, *, whole: bool) -> None:
        self._model, self._state, self._whole = model, state, whole
        self.num_done = 0

    def run(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any], *, is_epoch_done: bool
    ) -> dict[str, float]:
        """The means over the whole set, the same numbers on every worker; see `Trainer.evaluate`.

        Args:
            metrics: The user's function.
            loader: The set.
            is_epoch_done: Whether this worker has taken all steps of the epoch.
        """
        position = self._state.position
        self.num_done += 1
        if self.num_done <= len(position.evaluations):  # a joiner: the others have done it
            return position.evaluations[self.num_done - 1]
        parts = self._together(metrics, loader, is_epoch_done=is_epoch_done)
        if parts is None:
            return position.evaluations[self.num_done - 1]
        result = merge(parts)
        position.evaluations.append(result)
        self._state.evaluated(result)
        if self._state.is_leader:
            self._state.seat.planner.evaluated(
                Evaluated(epoch=position.epoch, step=position.applied_steps, metrics=result)
            )
        return result

    def _together(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any], *, is_epoch_done: bool
    ) -> list[bytes] | None:
        while self.num_done > len(self._state.position.evaluations):
            membership, collective = self._state.membership, self._state.seat.collective
            shares = membership.plan.local_batch_sizes
            part = self._part(metrics, loader, shares=shares, rank=collective.rank)
            try:
                return gather_bytes(collective, part, "metrics")
            except Interrupted as fault:
                self._state.recover("fault", str(fault))
            # In mid-epoch a fresh worker goes straight on to the next step: it will not help here.
            if not is_epoch_done and self._state.membership.consistency.num_new:
                return [self._part(metrics, loader, shares=[1], rank=0)]
        return None  # the others were through with it when the membership changed

    def _part(self, *task: Any, shares: Sequence[int], rank: int) -> bytes:  # noqa: ANN401
        whole, place = self._whole, device()
        return evaluate_part(
            self._model, *task, shares=shares, rank=rank, device=place, whole=whole
        )
