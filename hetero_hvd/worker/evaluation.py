"""Exact means over a whole set, from the parts that the workers computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import Evaluated
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.repeatable import Repeatable
from hetero_hvd.worker.data.seeding import Seeds
from hetero_hvd.worker.data.share_loader import Slice, contiguous_batches, try_reading
from hetero_hvd.worker.micro_batch.split import is_scalar, kind_of, to_device
from hetero_hvd.worker.model.registered import Registered
from hetero_hvd.worker.recovery.elastic_state import ElasticState
from hetero_hvd.worker.reduction.buffer_average import kept_buffers
from hetero_hvd.worker.session.worker_context import device
from hetero_hvd.worker.step.training_mode import TrainingMode

Mean = torch.Tensor | float
Means = Mapping[str, Mean | tuple[Mean, Mean]]
"""Name to mean, or to (mean, weight) where it has a weight of its own."""

Sums = dict[str, list[tuple[float, float]]]
"""Name to weighted value and weight of each batch, in order."""


GATHERED = "gathered"
"""In place of a result: which entry of the position's `gathered` it is."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker found in its part of a set.

    Attributes:
        sums: Of its batches.
        num_samples: Of the whole set, as this worker has it; -1 for a stream.
    """

    sums: Sums
    num_samples: int


Metrics = Means | tuple[Means, Mean]
"""Name to mean over a batch's samples, or (that, weight) where all are over something else."""


class PartedEvaluation(NamedTuple):
    """What is to be found out of a set by all workers together.

    Attributes:
        part: Called with the relative shares in rank order, this worker's rank, and what is to be
            called before each batch; gives what this worker finds in its part of the set.
        merge: Makes a result, name to number, of all parts in rank order; the same on all workers.
    """

    part: Callable[[Sequence[int], int, Callable[[], object]], bytes]
    merge: Callable[[Sequence[bytes]], dict[str, float]]


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
    with torch.no_grad(), evaluating(model):
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
    dataset: Any = loader.dataset
    length = -1 if isinstance(dataset, IterableDataset) else len(dataset)
    return msgspec.msgpack.encode(Part(sums=sums, num_samples=length))


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode; then each module's own mode again, and the buffers of the model's state.

    What a forward pass writes into them here would be something else on each worker.
    """
    modes = {module: module.training for module in model.modules()}
    with kept_buffers(Registered(model)):
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():  # outer ones first: they set that of what is inside
                if module.training != mode:
                    module.train(mode)
                    module.training = mode


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
        self._num_before = 0, 0
        self._place = (-1, -1)
        self._before = (-1, -1)
        self._begun = (-1, -1)

    def add(self, model: torch.nn.Module) -> None:
        """Put this one into evaluation mode, too."""
        self._models.append(model)

    @property
    def number(self) -> int:
        """Which evaluation since the last applied step this is, from 1."""
        return self.num_done + self._num_apart

    def step_begins(self) -> None:
        """A step is applied, or an epoch begins: no evaluation is done yet."""
        self.num_done = self._num_apart = 0

    def body_begins(self, part: Slice) -> None:
        """The loop's body is about to run; what comes before it at its step was evaluated before.

        Where it has run for its step already, it counts from where it did then: from none, if steps
        were still under way, as an evaluation applies them first.
        """
        self._look_where()
        position, step = self._state.position, (part.epoch, part.step_in_epoch)
        if step <= self._begun:
            before = self._num_before if step == self._before else (0, 0)
            self.num_done, self._num_apart = before
            return
        self._begun = step
        if step == (position.epoch, position.step_in_epoch):
            self._before = step
            self._num_before = self.num_done, self._num_apart

    def _look_where(self) -> None:
        """The steps since the last evaluation may have come with another worker's state."""
        position = self._state.position
        place = (position.epoch, position.applied_steps)
        if place != self._place:
            if place < self._place:  # all have gone back to a checkpoint
                self._begun = (-1, -1)
            self._place = place
            self.step_begins()

    def means(self, metrics: Callable[..., Metrics], loader: DataLoader[Any]) -> PartedEvaluation:
        """The means of the script's metrics over a whole set."""
        return PartedEvaluation(partial(self._part, metrics, loader), merge)

    def run(self, evaluation: PartedEvaluation, *, is_epoch_done: bool) -> dict[str, float]:
        """The result over the whole set, the same on every worker; see `Trainer.evaluate`.

        Args:
            evaluation: What is to be found out.
            is_epoch_done: Whether this worker has taken all steps of the epoch.
        """
        result = self._run(evaluation, is_epoch_done=is_epoch_done)
        self._script_goes_on(self.num_done)
        return result

    def _run(self, evaluation: PartedEvaluation, *, is_epoch_done: bool) -> dict[str, float]:
        position = self._state.position
        self._look_where()
        self.num_done += 1
        if self.num_done <= len(position.evaluations):  # a joiner: the others have done it
            return position.evaluations[self.num_done - 1]
        parts = self._together(evaluation, is_epoch_done=is_epoch_done)
        if parts is None:
            return position.evaluations[self.num_done - 1]
        result = evaluation.merge(parts)
        position.evaluations.append(result)
        return self._told(result, is_teller=self._state.is_leader)

    def gather(self, payload: bytes) -> list[bytes]:
        """What each worker has to tell at the end of an epoch, in rank order; alike on all.

        If a worker is lost meanwhile, those who remain tell it again. Whoever comes, or had not all
        of it when the membership changed, has it from those who had.

        Args:
            payload: This worker's.
        """
        position = self._state.position
        self._look_where()
        self.num_done += 1
        if self.num_done > len(position.evaluations):
            own = PartedEvaluation(lambda *_: payload, lambda _: {})
            parts = self._together(own, is_epoch_done=True)
            if parts is not None:
                position.evaluations.append({GATHERED: float(len(position.gathered))})
                position.gathered.append(parts)
        return position.gathered[int(position.evaluations[self.num_done - 1][GATHERED])]

    def run_apart(self, evaluation: PartedEvaluation) -> dict[str, float]:
        """The same in the midst of a step's application, when nobody can be let in.

        If the rendezvous breaks, each worker goes over the whole set by itself.
        """
        self._look_where()
        self._num_apart += 1
        shares, collective = (
            self._state.membership.plan.local_batch_sizes,
            self._state.context.collective,
        )
        parts = None
        if not self._state.application.fault:
            part = evaluation.part(shares, collective.rank, lambda: None)
            with self._clock.phase("comm_wait"), suppress(Interrupted):
                parts = gather_bytes(collective, part, "metrics")
        parts = parts or [evaluation.part([1], 0, lambda: None)]
        return self._told(evaluation.merge(parts), is_teller=self._state.is_leader)

    def run_alone(self, evaluation: PartedEvaluation, *, is_first: bool) -> dict[str, float]:
        """The same where others do not come, as they have no part of the step: over the whole set.

        Args:
            evaluation: What is to be found out.
            is_first: Whether this is the first of the workers that have a part.
        """
        self._look_where()
        self._num_apart += 1
        part = evaluation.part([1], 0, self._state.leave_if_due)
        self._script_goes_on(self.number)
        needs_all = 0 in self._state.membership.plan.local_batch_sizes  # else the batch is small
        return self._told(evaluation.merge([part]), is_teller=is_first, needs_all=needs_all)

    def _told(
        self, result: dict[str, float], *, is_teller: bool, needs_all: bool = False
    ) -> dict[str, float]:
        position = self._state.position
        self._state.evaluated(result, is_keeper=is_teller)
        if is_teller:
            event = Evaluated(
                epoch=position.trained_epoch,
                step=position.applied_steps,
                metrics=result,
                needs_all=needs_all,
            )
            self._state.context.tell(event)
        return result

    def _together(self, evaluation: PartedEvaluation, *, is_epoch_done: bool) -> list[bytes] | None:
        leave_if_due = self._state.leave_if_due  # an evaluation may last longer than anybody waits
        self._state.rejoin()
        while self.num_done > len(self._state.position.evaluations):
            membership, collective = self._state.membership, self._state.context.collective
            shares = membership.plan.local_batch_sizes
            part = evaluation.part(shares, collective.rank, leave_if_due)
            try:
                with self._clock.phase("comm_wait"):
                    return gather_bytes(collective, part, "metrics")
            except Interrupted as fault:
                self._state.recover("fault", str(fault))
            # In mid-epoch a fresh worker goes straight on to the next step: it will not help here.
            if not is_epoch_done and self._state.membership.consistency.num_new:
                return [evaluation.part([1], 0, leave_if_due)]
        return None  # the others were through with it when the membership changed

    def _part(
        self,
        metrics: Callable[..., Metrics],
        loader: DataLoader[Any],
        shares: Sequence[int],
        rank: int,
        before_each: Callable[[], object],
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
