"""Exact means over a whole set, from the parts that the workers computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec
import torch
from torch.utils.data import DataLoader

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import Evaluated
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.repeatable import Repeatable
from hetero_hvd.worker.data.seeding import Seeds
from hetero_hvd.worker.data.share_loader import contiguous_batches, try_reading
from hetero_hvd.worker.micro_batch.split import is_scalar, kind_of, to_device
from hetero_hvd.worker.model.registered import Registered
from hetero_hvd.worker.recovery.elastic_state import ElasticState
from hetero_hvd.worker.reduction.buffer_average import Kept
from hetero_hvd.worker.session.worker_context import device
from hetero_hvd.worker.step.training_mode import TrainingMode

Mean = torch.Tensor | float
Means = Mapping[str, Mean | tuple[Mean, Mean]]
"""Name to mean, or to (mean, weight) where it has a weight of its own."""

Sums = dict[str, list[tuple[float, float]]]
"""Name to weighted value and weight of each batch, in order."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker found in its part of a set.

    Attributes:
        sums: Of its batches.
        num_samples: Of the whole set, as this worker has it.
    """

    sums: Sums
    num_samples: int


Metrics = Means | tuple[Means, Mean]
"""Name to mean over a batch's samples, or (that, weight) where all are over something else."""


def evaluate_part(
    model: torch.nn.Module,
    metrics: Callable[..., Metrics],
    loader: DataLoader[Any],
    *,
    shares: Sequence[int],
    rank: int,
    device: torch.device,
    repeated: tuple[Repeatable, Seeds] | None = None,
    before_each: Callable[[], object] = lambda: None,
) -> bytes:
    """One worker's weighted means, batch by batch, for `merge`.

    Args:
        model: Put into evaluation mode meanwhile; afterwards it is as it was.
        metrics: The user's function.
        loader: The set.
        shares: Relative shares in rank order.
        rank: Which part.
        device: Where the model is.
        repeated: What calls the metrics, and the seeds of this evaluation: then whole batches only,
            each with generators seeded for it, so that the result does not depend on the shares.
        before_each: Called before each batch; the metrics are not wrapped, as they are looked into.
    """
    sums: Sums = {}
    seeds = repeated[1] if repeated else None
    with torch.no_grad(), _evaluating(model):
        for number, num_samples, batch in contiguous_batches(loader, shares, rank, seeds=seeds):
            before_each()
            moved = to_device(batch, device)
            arguments = moved if isinstance(moved, tuple | list) else (moved,)
            if repeated is None:
                found = metrics(*arguments)
            else:
                use = partial(repeated[1].use, Stream.METRICS, number)
                use()
                found = repeated[0].call(metrics, arguments, put_back=use)
            _add(sums, _weighted(found, num_samples))
    return msgspec.msgpack.encode(Part(sums=sums, num_samples=len(loader.dataset)))  # type: ignore[arg-type]


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode; then each module's own mode again, and the buffers of the model's state.

    What a forward pass writes into them here would be something else on each worker.
    """
    registered = Registered(model)
    registered.look()
    kept = [Kept.of(place) for place in registered.places if place.is_persistent]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():  # outer ones first: they set the mode of what is inside
            if module.training != mode:
                module.train(mode)
                module.training = mode
        for each in kept:
            each.restore()


RULE = "must return a dict of name to mean (a number or a scalar tensor), or (that, weight)"


def _weighted(found: Any, num_samples: int) -> Iterator[tuple[str, float, float]]:  # noqa: ANN401
    """Name, mean and weight of each metric that the user's function gave.

    Raises:
        UserError: It gave something else.
    """
    means, common = found if isinstance(found, tuple) and len(found) == 2 else (found, num_samples)  # noqa: PLR2004
    if not isinstance(means, Mapping) or not means:
        said = "an empty dict" if isinstance(means, Mapping) else kind_of(means)
        raise UserError(f"metrics returned {said}: {RULE}")
    for name, value in means.items():
        if not isinstance(name, str):
            raise UserError(f"metrics returned the name {name!r}: {RULE}, names being strings")
        has_own = isinstance(value, tuple) and len(value) == 2  # noqa: PLR2004 - (mean, weight)
        mean, weight = value if has_own else (value, common)
        if not is_scalar(mean):
            raise UserError(f"metrics returned {kind_of(mean)} for {name!r}: {RULE}")
        if not is_scalar(weight) or not 0 <= float(weight) < math.inf:
            wrong = weight if is_scalar(weight) else kind_of(weight)
            raise UserError(f"metrics returned the weight {wrong}: must be a number >= 0")
        yield name, float(mean), float(weight)


def _add(sums: Sums, found: Iterable[tuple[str, float, float]]) -> None:
    """Add a batch's metrics; a mean over nothing is NaN: it must not spoil the sum.

    Raises:
        UserError: They have other names than those of the batches before.
    """
    batch = {name: (mean * weight if weight else 0.0, weight) for name, mean, weight in found}
    if sums and sums.keys() != batch.keys():
        raise UserError(_other_names(sums, batch))
    for name, part in batch.items():
        sums.setdefault(name, []).append(part)


def _other_names(before: Iterable[str], now: Iterable[str]) -> str:
    return (
        f"metrics returned {', '.join(sorted(before))} for one batch, {', '.join(sorted(now))} for "
        "another: must be the same names for each, on all workers; (mean, 0) tells nothing of one"
    )


def merge(parts: Sequence[bytes]) -> dict[str, float]:
    """The means over the whole set; summed in the set's order, the same number on every worker.

    Raises:
        JobError: The workers' sets, or the names of their metrics, differ.
    """
    sums: Sums = {}
    found = [msgspec.msgpack.decode(part, type=Part) for part in parts]
    lengths = [part.num_samples for part in found]
    if len(set(lengths)) > 1:
        raise JobError(
            f"trainer.evaluate: the set has {', '.join(map(str, lengths))} samples on the workers "
            "(in rank order): it must be the same set on all workers, not a part of it on each"
        )
    for part in found:
        if part.sums and sums and part.sums.keys() != sums.keys():
            raise JobError(f"trainer.evaluate: {_other_names(sums, part.sums)}")
        for name, batches in part.sums.items():
            sums.setdefault(name, []).extend(batches)
    return {name: _mean(batches) for name, batches in sums.items()}


def _mean(batches: Sequence[tuple[float, float]]) -> float:
    """The weighted mean; NaN over nothing."""
    weight = sum(weight for _, weight in batches)
    return sum(total for total, _ in batches) / weight if weight else math.nan


class Evaluations:
    """What all workers evaluate together, each its part; elastic as training is.

    Args:
        model: Of this worker.
        others: Further state; the models in it, such as an average of the model, are evaluated too.
        state: Its position holds the results since the last applied step.
        clock: Of the step's phases: an evaluation is one, and so is its wait for the others.
        mode: For the seeds of an evaluation.

    Attributes:
        num_done: By this worker since the last applied step, without those that were run apart.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        others: Iterable[object],
        state: ElasticState,
        clock: PhaseClock,
        mode: TrainingMode,
    ) -> None:
        self._state = state
        self._clock = clock
        self._mode = mode
        models = [other for other in others if isinstance(other, torch.nn.Module)]
        self._models = torch.nn.ModuleList([model, *models])
        self._metrics = Repeatable("the metrics function", model)
        self._tried: WeakSet[DataLoader[Any]] = WeakSet()
        self.num_done = self._num_apart = 0

    @property
    def number(self) -> int:
        """Which evaluation since the last applied step this is, from 1."""
        return self.num_done + self._num_apart

    def step_begins(self) -> None:
        """A step is applied, or an epoch begins: no evaluation is done yet."""
        self.num_done = self._num_apart = 0

    def run(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any], *, is_epoch_done: bool
    ) -> dict[str, float]:
        """The means over the whole set, the same numbers on every worker; see `Trainer.evaluate`.

        Args:
            metrics: The user's function.
            loader: The set.
            is_epoch_done: Whether this worker has taken all steps of the epoch.
        """
        result = self._run(metrics, loader, is_epoch_done=is_epoch_done)
        self._script_goes_on(self.num_done)
        return result

    def _run(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any], *, is_epoch_done: bool
    ) -> dict[str, float]:
        position = self._state.position
        self.num_done += 1
        if self.num_done <= len(position.evaluations):  # a joiner: the others have done it
            return position.evaluations[self.num_done - 1]
        parts = self._together(metrics, loader, is_epoch_done=is_epoch_done)
        if parts is None:
            return position.evaluations[self.num_done - 1]
        result = merge(parts)
        position.evaluations.append(result)
        return self._told(result, is_teller=self._state.is_leader)

    def run_apart(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any]
    ) -> dict[str, float]:
        """The same in the midst of a step's application, when nobody can be let in.

        If the rendezvous breaks, each worker goes over the whole set by itself.
        """
        self._num_apart += 1
        shares, collective = (
            self._state.membership.plan.local_batch_sizes,
            self._state.context.collective,
        )
        part = self._part(metrics, loader, shares=shares, rank=collective.rank)
        try:
            with self._clock.phase("comm_wait"):
                parts = gather_bytes(collective, part, "metrics")
        except Interrupted:
            parts = [self._part(metrics, loader, shares=[1], rank=0)]
        return self._told(merge(parts), is_teller=self._state.is_leader)

    def run_alone(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any], *, is_first: bool
    ) -> dict[str, float]:
        """The same where others do not come, as they have no part of the step: over the whole set.

        Args:
            metrics: The user's function.
            loader: The set.
            is_first: Whether this is the first of the workers that have a part.
        """
        self._num_apart += 1
        before_each = self._state.leave_if_due
        part = self._part(metrics, loader, shares=[1], rank=0, before_each=before_each)
        self._script_goes_on(self.number)
        needs_all = 0 in self._state.membership.plan.local_batch_sizes  # else the batch is small
        return self._told(merge([part]), is_teller=is_first, needs_all=needs_all)

    def _told(
        self, result: dict[str, float], *, is_teller: bool, needs_all: bool = False
    ) -> dict[str, float]:
        position = self._state.position
        self._state.evaluated(result, is_keeper=is_teller)
        if is_teller:
            if needs_all:  # without a driver it is rank 0 who plans, and it may have no part
                self._state.membership.exchange.needs_all = True
            event = Evaluated(
                epoch=position.trained_epoch,
                step=position.applied_steps,
                metrics=result,
                needs_all=needs_all,
            )
            self._state.context.planner.evaluated(event)
        return result

    def _together(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any], *, is_epoch_done: bool
    ) -> list[bytes] | None:
        leave_if_due = self._state.leave_if_due  # an evaluation may last longer than anybody waits
        self._state.rejoin()
        while self.num_done > len(self._state.position.evaluations):
            membership, collective = self._state.membership, self._state.context.collective
            shares = membership.plan.local_batch_sizes
            part = self._part(
                metrics, loader, shares=shares, rank=collective.rank, before_each=leave_if_due
            )
            try:
                with self._clock.phase("comm_wait"):
                    return gather_bytes(collective, part, "metrics")
            except Interrupted as fault:
                self._state.recover("fault", str(fault))
            # In mid-epoch a fresh worker goes straight on to the next step: it will not help here.
            if not is_epoch_done and self._state.membership.consistency.num_new:
                return [self._part(metrics, loader, shares=[1], rank=0, before_each=leave_if_due)]
        return None  # the others were through with it when the membership changed

    def _part(
        self,
        metrics: Callable[..., Metrics],
        loader: DataLoader[Any],
        *,
        shares: Sequence[int],
        rank: int,
        before_each: Callable[[], object] = lambda: None,
    ) -> bytes:
        repeated, seeds = None, self._seeds()
        if seeds is not None:
            if loader not in self._tried:
                try_reading(loader, loader.batch_size or 1)
                self._tried.add(loader)
            repeated = self._metrics, seeds
        with self._clock.phase("evaluation"):
            return evaluate_part(
                self._models,
                metrics,
                loader,
                shares=shares,
                rank=rank,
                device=device(),
                repeated=repeated,
                before_each=before_each,
            )

    def _script_goes_on(self, number: int) -> None:
        """Where random numbers have seeds, the script draws the same ones on every worker."""
        if (seeds := self._seeds()) is not None:
            seeds.use(Stream.SCRIPT, number)

    def _seeds(self) -> Seeds | None:
        position = self._state.position
        return self._mode.seeds(position.epoch, position.step_in_epoch)
