"""A step that gives the same bits however its global batch is divided.

Each grain is one forward and backward, from the same buffers and with generators seeded for it.
What grains contribute (gradients, changes of running statistics) is added up in fixed point; losses
and weights, a few numbers, are gathered and added in the order of the grains. What follows (clip,
scaler, optimizer) sees sums only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.core.numerics.fixed_point import NON_FINITE, SMALLEST, UNUSED
from hetero_hvd.errors import InvariantError, UserError
from hetero_hvd.worker.comm.horovod import Collective, Handle
from hetero_hvd.worker.data.repeatable import Repeatable
from hetero_hvd.worker.data.seeding import Seeds
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.micro_batch.split import Loss, own_memory, parts_of, to_device
from hetero_hvd.worker.model.check import ModelCheck
from hetero_hvd.worker.model.registered import Digest, Registered
from hetero_hvd.worker.reduction.in_flight import ExchangeTrigger
from hetero_hvd.worker.reproducible.fixed_point_sums import FixedPointSums
from hetero_hvd.worker.reproducible.grain_buffers import GrainBuffers
from hetero_hvd.worker.reproducible.requirements import GrainSettings, refuse_model
from hetero_hvd.worker.step.non_finite import NonFiniteGuard
from hetero_hvd.worker.step.optimizer_update import OptimizerUpdate
from hetero_hvd.worker.step.passes import Passes
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.step.training_step import AppliedStep, Course, Retry, planned_parts


class Scales:
    """The exponent that each tensor is assumed to have; part of the replica."""

    def __init__(self) -> None:
        self.exponents: dict[str, int] = {}

    def state_dict(self) -> dict[str, Any]:
        """Name of the parameter or buffer to exponent."""
        return dict(self.exponents)

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over another worker's."""
        self.exponents = dict(state)


class _Gathered(NamedTuple):
    """What the workers have told of a step whose sums are under way."""

    handle: Handle

    def is_done(self, collective: Collective) -> bool:
        """See `Submitted`."""
        return collective.is_done(self.handle)


class Told(NamedTuple):
    """What all workers have told of a step.

    Attributes:
        losses: Mean losses times their weights, in the order of the grains.
        weights: Their weights.
        observed: The largest exponents of each tensor.
        is_urgent: Whether any worker wants an exchange of timings.
        counted: Sum of what the loss functions have counted.
    """

    losses: list[float]
    weights: list[float]
    observed: list[int]
    is_urgent: bool
    counted: float


class GrainStep:
    """See the module's docstring, and `TrainingStep` for what each method promises.

    Args:
        script: What is trained.
        loader: Hands out this worker's grains.
        settings: How grains are computed and added up.

    Attributes:
        passes: See `TrainingStep`.
        in_flight: The step that is submitted and not applied yet, if there is one.
    """

    def __init__(self, script: Script, loader: ShareLoader, settings: GrainSettings) -> None:
        model, options, device = script.model, script.options, script.device
        sizing = MicroBatchSizer(settings.grain, device, is_fixed=True)
        self.passes = Passes(device, sizing, options.scaler, script.clock)
        self.in_flight: deque[_Gathered] = deque()
        self._options = options
        self._settings = settings
        self._model = model
        self._loader = loader
        self._registered = Registered(model, script.name)
        self._check = ModelCheck(model, script.optimizer)
        self._check.run()
        self._shards = script.shards
        self._update = OptimizerUpdate(script.optimizer, options, device, script.shards)
        self._guard = NonFiniteGuard()
        self._buffers = GrainBuffers()
        self._scales = Scales()
        self._parameters: dict[str, Parameter] = {}
        self._sums: FixedPointSums | None = None
        self._shaped: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._counted = 0.0
        self._used: list[bool] = []
        self._is_prepared = self._is_second_try = self._has_failed = False
        self._loss_functions = Repeatable("the loss function", model)
        self._grain = 0

    @property
    def state(self) -> Mapping[str, Stateful]:
        """The scales of the sums."""
        return {"scales": self._scales}

    def parts(self, course: Course) -> Iterator[Slice]:
        """One in each step, as the plan says."""
        return planned_parts(self._loader, course)

    def check_evaluation(self) -> None:
        """All workers are at the same step, always."""

    def begin(self, collective: Collective, part: Slice, *, again: bool = False) -> None:  # noqa: ARG002
        """Start a step on this worker's grains."""
        self.passes.begin(part)
        self._is_second_try = again
        self._has_failed = False
        self._is_prepared = False
        self._seeds.use(Stream.SCRIPT)

    def _prepare(self) -> None:
        """Once in a step, as late as can be: the script may change the model until it computes."""
        if self._is_prepared:
            return
        self._is_prepared = True
        with self.passes.clock.phase("optimizer"):  # what `zero_grad` would be
            self._ask_model()
            self._make_ready()
            self._registered.mark()

    def _ask_model(self) -> None:
        """Follow what the script has changed since the last step."""
        is_new = self._registered.look()
        self._buffers.remember(self._registered.places)
        if is_new:
            self._check.run()
            refuse_model(self._model)
            named = self._registered.parameters
            self._parameters = {name: p for name, p in named.items() if p.requires_grad}
            sizes = [p.numel() for p in self._parameters.values()] + self._buffers.sizes
            self._sums = FixedPointSums(
                sizes, device=self.passes.device, fixed_point=self._settings.fixed_point
            )
            self._shaped = [
                view.view_as(parameter)
                for view, parameter in zip(
                    self._sums.views, self._parameters.values(), strict=False
                )
            ]

    def _make_ready(self) -> None:
        sums = self._prepared()
        for parameter in self._registered.parameters.values():
            parameter.grad = None
        assumed = [self._scales.exponents.setdefault(name, 0) for name in self._names()]
        sums.begin(assumed, num_grains=self._settings.num_grains)
        self._losses = []
        self._weights = []
        self._counted = 0.0
        self._used = [False] * len(self._parameters)

    def try_smaller(self) -> Retry:
        """A grain is never cut: the step begins anew, once, with what memory was given back."""
        if self._has_failed:
            return Retry.IMPOSSIBLE
        self._has_failed = True
        self._buffers.restore()
        self.passes.clock.take()
        self.passes.begin(self.passes.part)
        self._make_ready()
        return Retry.PART

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The grains on the device, in order, with everything reset for each."""
        passes = self.passes
        part = passes.part
        if not part.num_samples:
            return
        self._prepare()
        if part.grains is None:
            raise InvariantError("a part of a step has no grains")
        first = part.first_sample // self._settings.grain
        passes.sizing.choose(part.num_samples)
        pieces = zip(part.grains.sizes, part.grains.pieces(batch), strict=True)
        for self._grain, (self.passes.num_samples, piece) in enumerate(pieces, first):
            with passes.clock.phase("transfer"):
                moved = [own_memory(to_device(item, passes.device)) for item in piece]
                self._begin_grain()
            yield moved

    def compute(self, loss_function: Callable[..., Loss], micro_batch: Sequence[Any]) -> Loss:
        """The user's function, in a forward pass; what cannot be reproduced is refused."""
        call = partial(self._loss_functions.call, put_back=self._begin_grain)
        loss: Loss = self.passes.forward(call, loss_function, micro_batch)
        return loss

    def _begin_grain(self) -> None:
        """Every grain starts from the step's buffers, with its own random numbers."""
        self._buffers.restore()
        self._seeds.use(Stream.MODEL, self._grain)

    def backward(self, loss: Loss) -> None:
        """Backward of a grain, and its contribution to the sums."""
        self._registered.check_unwritten()
        mean, weight, counted = parts_of(loss, num_samples=self.passes.num_samples)
        self._counted += counted
        if weight == 0:  # a mean over nothing is NaN: it must not spoil the sum
            return
        self._losses.append(mean.detach().double() * weight)
        self._weights.append(weight)
        global_samples = self.passes.part.global_samples
        self.passes.backward(mean, weight / global_samples)
        self._contribute(self.passes.num_samples / global_samples)

    def _contribute(self, ratio: float) -> None:
        """Add what a grain, this part of the global batch, has left in gradients and buffers."""
        sums = self._prepared()
        gradients, views = [], []
        for index, (parameter, view) in enumerate(
            zip(self._parameters.values(), self._shaped, strict=True)
        ):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
                continue
            if gradient.is_sparse:
                raise UserError(
                    "sparse gradients are not reduced: use sparse=False in the embedding"
                )
            gradients.append(gradient)
            views.append(view)
            parameter.grad = None
            self._used[index] = True
        if gradients:
            torch._foreach_copy_(views, gradients)
        self._buffers.write_changes(sums.views[len(self._parameters) :], ratio)
        sums.add()

    def part_done(self, collective: Collective) -> bool:  # noqa: ARG002 - see `TrainingStep`
        """A step has one part."""
        return True

    def submit(self, collective: Collective, urgency: ExchangeTrigger) -> int:
        """Submit this worker's grains."""
        self._prepare()
        passes, sums = self.passes, self._prepared()
        num_samples = passes.part.num_samples
        passes.hold(num_samples)
        used = [*self._used, *[bool(self._weights)] * self._buffers.number]
        is_urgent = urgency(num_samples, passes.clock.is_immediate)
        rows = self._rows(sums.observed(used), is_urgent)
        handle = collective.gather_rows_async(rows, "grains")
        sums.submit(collective, bucket_bytes=self._options.bucket_bytes)
        self.in_flight.append(_Gathered(handle))
        return num_samples

    def apply_oldest(self, collective: Collective) -> AppliedStep | None:
        """Wait for the sums over all workers, and apply them.

        A value that was too large or too small for its scale is seen by all workers: they take the
        step again.
        """
        part, sums = self.passes.part, self._prepared()
        with self.passes.clock.phase("comm_wait"):
            gathered = collective.wait(self.in_flight[0].handle)
            told = self._read(collective, gathered.tolist())
            sums.wait(collective)
        if self._options.scaler is None and not _are_finite(told.losses, told.observed):
            self._skip(collective)
            loss = math.nan
        else:
            self._guard.step_is_good()
            if not self._follow(told.observed):
                return None
            self.in_flight.popleft()
            self._apply(told)
            weight = sum(told.weights)
            loss = sum(told.losses) / weight if weight else 0.0
        return AppliedStep(
            loss=loss,
            num_samples=part.global_samples,
            is_urgent=told.is_urgent,
            counted=told.counted,
        )

    def _skip(self, collective: Collective) -> None:
        is_mine = not all(map(math.isfinite, self._own_losses()))
        guilty = self._guard.guilty(collective, is_mine=is_mine)
        self._guard.step_is_bad(collective, guilty)
        self._buffers.drop()
        self.in_flight.popleft()

    def _apply(self, told: Told) -> None:
        part, weight = self.passes.part, sum(told.weights)
        with self.passes.clock.phase("optimizer"):
            factor = part.global_samples / weight if weight else 0.0
            self._update.clear()
            factors = [factor] * len(self._parameters) + [1.0] * self._buffers.number
            self._prepared().decode(factors)
            self._write_back(told.observed)
            self._seeds.use(Stream.UPDATE)
            self._update.apply(list(self._parameters.values()))
            Seeds(self._settings.seed, part.epoch, part.step_in_epoch + 1).use(Stream.SCRIPT)

    def restore(self) -> None:
        """The buffers are again as after the last update; the step begun is dropped."""
        self._buffers.restore()

    def abort(self) -> None:
        """Drop a step that was not applied."""
        self.in_flight.clear()
        self._buffers.drop()

    def release(self) -> None:
        """Training is over: let go of the model."""
        self._registered.forget()

    @property
    def _seeds(self) -> Seeds:
        part = self.passes.part
        return Seeds(self._settings.seed, part.epoch, part.step_in_epoch)

    def _names(self) -> list[str]:
        return [*self._parameters, *self._buffers.names]

    def _prepared(self) -> FixedPointSums:
        """The sums of the step."""
        assert self._sums is not None  # noqa: S101 - made before
        return self._sums

    def _own_losses(self) -> list[float]:
        return torch.stack(self._losses).tolist() if self._losses else []

    def _rows(self, observed: list[int], is_urgent: bool) -> torch.Tensor:
        """What is gathered: three of a head, loss and weight of each grain, the exponents.

        The last number of the head is what this worker wants of a state in parts.
        """
        losses = self._own_losses()
        wish = 0.0 if self._shards is None else self._shards.wishes.own
        rows = [[float(len(losses)), float(is_urgent)], list(self._digest()), [self._counted, wish]]
        rows += [[loss, weight] for loss, weight in zip(losses, self._weights, strict=True)]
        rows += [[float(exponent), 0.0] for exponent in observed]
        return torch.tensor(rows, dtype=torch.float64)

    def _digest(self) -> Digest:
        return self._registered.digest(self.passes.part, self._registered.code)

    def _read(self, collective: Collective, rows: list[list[float]]) -> Told:
        """What was gathered.

        Raises:
            JobError: The workers' models differ.
        """
        losses, weights, wishes, is_any_urgent, counted = [], [], [], False, 0.0
        num_tensors, at = len(self._names()), 0
        observed = [UNUSED] * num_tensors
        while at < len(rows):
            (num_grains, is_urgent), theirs, (own_counted, wish) = rows[at : at + 3]
            self._registered.check_alike(
                collective, theirs, digest=self._digest(), part=self.passes.part, num_workers=1
            )
            is_any_urgent |= is_urgent > 0
            counted += own_counted
            wishes.append(wish)
            at += 3 + int(num_grains)
            losses += [loss for loss, _ in rows[at - int(num_grains) : at]]
            weights += [weight for _, weight in rows[at - int(num_grains) : at]]
            exponents = [int(exponent) for exponent, _ in rows[at : at + num_tensors]]
            observed = [max(pair) for pair in zip(observed, exponents, strict=True)]
            at += num_tensors
        if self._shards is not None:
            self._shards.wishes.hear(wishes)
        return Told(losses, weights, observed, is_any_urgent, counted)

    def _follow(self, observed: list[int]) -> bool:
        """Set the scales that the maxima ask for; gives whether those of this step were right."""
        fixed_point, exponents = self._settings.fixed_point, self._scales.exponents
        found = dict(zip(self._names(), observed, strict=True))
        wrong = [n for n, e in found.items() if fixed_point.is_wrong(exponents[n], e)]
        if wrong and self._is_second_try:
            raise InvariantError(
                f"reproducible: {wrong[0]} came out differently when the step was taken again"
            )
        for name in wrong:
            exponents[name] = max(found[name], SMALLEST)
        if wrong:
            return False
        for name, exponent in found.items():
            exponents[name] = fixed_point.next_assumed(exponents[name], exponent)
        return True

    def _write_back(self, observed: list[int]) -> None:
        """The sums become gradients and buffers."""
        views = self._prepared().views
        for view, exponent in zip(views, observed, strict=True):
            if exponent == NON_FINITE:
                view.fill_(math.nan)
        for parameter, view, exponent in zip(
            self._parameters.values(), views, observed, strict=False
        ):
            if exponent == UNUSED:
                parameter.grad = None
                continue
            parameter.grad = view.view_as(parameter).to(parameter.dtype)
        self._buffers.write_back(views[len(self._parameters) :])


def _are_finite(losses: Iterable[float], observed: Iterable[int]) -> bool:
    return all(map(math.isfinite, losses)) and NON_FINITE not in observed
