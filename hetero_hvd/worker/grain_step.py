"""A step that gives the same bits however its global batch is divided.

Each grain is one forward and backward, from the same buffers and with generators seeded for it.
What grains contribute (gradients, changes of running statistics) is added up in fixed point; losses
and weights, a few numbers, are gathered and added in the order of the grains. What follows (clip,
scaler, optimizer) sees sums only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from hetero_hvd.core.fixed_point import NON_FINITE, SMALLEST, UNUSED
from hetero_hvd.core.grains import Stream
from hetero_hvd.errors import InvariantError, UserError
from hetero_hvd.worker.collective import Collective
from hetero_hvd.worker.fixed_sums import FixedPointSums
from hetero_hvd.worker.flight import TakeAgain, Urgency, never
from hetero_hvd.worker.grain_buffers import GrainBuffers
from hetero_hvd.worker.loader import Slice
from hetero_hvd.worker.micro_batch import own_memory, split, to_device
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.randomness import Seeds
from hetero_hvd.worker.reproducible import Reproducible
from hetero_hvd.worker.sizing import Sizing
from hetero_hvd.worker.step import Step


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


class GrainStep(Step):
    """See the module's docstring, and `Step` for the order of calls.

    Args:
        model: The user's model.
        optimizer: The user's optimizer.
        options: How to take a step.
        device: Where the model is.
        mode: Of the reproducible mode.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        options: StepOptions,
        device: torch.device,
        mode: Reproducible,
    ) -> None:
        super().__init__(model, optimizer, options, device)
        self._mode = mode
        self._named = dict(model.named_parameters())
        self._grain_buffers = GrainBuffers(model)
        self.scales = self._scales = Scales()
        self._parameters: dict[str, Parameter] = {}
        self._sums: FixedPointSums | None = None
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._used: list[bool] = []
        self._is_second_try = self._has_failed = False
        self.sizing = Sizing(mode.grain, device, is_fixed=True)

    def begin(self, collective: Collective, part: Slice) -> None:  # noqa: ARG002 - see `Step`
        """Start a step on this worker's grains."""
        self._start(part)
        self._is_second_try, self._has_failed = self.again, False
        with self.clock.phase("optimizer"):
            self._grain_buffers.remember()
            self._begin_sums()

    def _begin_sums(self) -> None:
        sums = self._prepared()
        for parameter in self._named.values():
            parameter.grad = None
        assumed = [self._scales.exponents.setdefault(name, 0) for name in self._names()]
        sums.begin(assumed, num_grains=self._mode.num_grains)
        self._losses, self._weights = [], []
        self._used = [False] * len(self._parameters)
        self._seeds.use(Stream.SCRIPT)

    def try_smaller(self) -> bool:
        """A grain is never cut: the step begins anew, once, with what memory was given back."""
        if self._has_failed:
            return False
        self._has_failed = True
        self._grain_buffers.restore()
        self._start(self._current())
        self._begin_sums()
        self.clock.take()
        return True

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The grains on the device, in order, with everything reset for each."""
        part = self._current()
        if not part.num_samples:
            return
        grain = part.first_sample // self._mode.grain
        size = self._mode.grain
        self.sizing.choose(part.num_samples)
        for num_samples, piece in split(batch, num_samples=part.num_samples, size=size):
            with self.clock.phase("transfer"):
                moved = [own_memory(to_device(item, self._device)) for item in piece]
                self._micro = (num_samples, False)
                self._grain_buffers.restore()
                self._seeds.use(Stream.MODEL, grain)
            yield moved
            grain += 1

    def _contribute(self, mean: torch.Tensor, weight: float) -> None:
        """Backward of a grain, and its contribution to the sums."""
        self._losses.append(mean.detach().double() * weight)
        self._weights.append(weight)
        self._differentiate(mean * (weight / self._current().global_samples))
        num_samples, _ = self._micro
        sums = self._prepared()
        for index, (parameter, view) in enumerate(
            zip(self._parameters.values(), sums.views, strict=False)
        ):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
                continue
            if gradient.is_sparse:
                raise UserError(
                    "sparse gradients are not reduced: use sparse=False in the embedding"
                )
            view.view_as(parameter).copy_(gradient)
            parameter.grad = None
            self._used[index] = True
        self._grain_buffers.write_changes(
            sums.views[len(self._parameters) :], num_samples / self._current().global_samples
        )
        sums.add()

    def launch(self, collective: Collective, urgency: Urgency = never) -> int:
        """Submit this worker's grains; see `Step.launch`."""
        part, sums = self._current(), self._prepared()
        self._hold(part)
        used = [*self._used, *[bool(self._weights)] * self._grain_buffers.number]
        is_urgent = urgency(part.num_samples, self.clock.busy_seconds)
        rows = self._rows(sums.observed(used), is_urgent)
        handle = collective.gather_rows_async(rows, "grains")
        sums.launch(collective, bucket_bytes=self._options.bucket_bytes)
        self.in_flight.append(handle)
        return part.num_samples

    def land(self, collective: Collective) -> float:
        """Wait for the sums over all workers, and apply them; see `Step.land`.

        Raises:
            Interrupted: A reduction broke.
            TakeAgain: A value was too large or too small for its scale; all workers see it.
        """
        part, sums = self._current(), self._prepared()
        with self.clock.phase("comm_wait"):
            sums.wait(collective)
            gathered = collective.wait(self.in_flight[0])
        losses, weights, observed = self._read(gathered.tolist())
        if self._options.scaler is None and not _are_finite(losses, observed):
            is_mine = not all(map(math.isfinite, self._own_losses()))
            guilty = self._bad_numbers.guilty(collective, is_mine=is_mine)
            self._bad_numbers.step_is_bad(collective, guilty)
            self._grain_buffers.restore()
            self.in_flight.popleft()
            return math.nan
        self._bad_numbers.step_is_good()
        self._follow(observed)
        self.in_flight.popleft()
        weight = sum(weights)
        with self.clock.phase("optimizer"):
            factor = part.global_samples / weight if weight else 0.0
            number = self._grain_buffers.number
            sums.decode([factor] * len(self._parameters) + [1.0] * number)
            self._publish(observed)
            self._update.apply(list(self._parameters.values()))
            Seeds(self._mode.seed, part.epoch, part.step_in_epoch + 1).use(Stream.SCRIPT)
        return sum(losses) / weight if weight else 0.0

    def put_back(self) -> None:
        """Nothing is taken on trial, and each grain begins with the buffers of the last update."""

    def undo(self) -> None:
        """Forget a step that was not applied."""
        self.in_flight.clear()
        self._grain_buffers.restore()

    @property
    def _seeds(self) -> Seeds:
        part = self._current()
        return Seeds(self._mode.seed, part.epoch, part.step_in_epoch)

    def _names(self) -> list[str]:
        return [*self._parameters, *self._grain_buffers.names]

    def _prepared(self) -> FixedPointSums:
        """The sums; new ones when parameters were frozen or unfrozen."""
        trained = {name: p for name, p in self._named.items() if p.requires_grad}
        if self._sums is None or list(trained) != list(self._parameters):
            self._parameters = trained
            sizes = [p.numel() for p in trained.values()] + self._grain_buffers.sizes
            self._sums = FixedPointSums(
                sizes, device=self._device, fixed_point=self._mode.fixed_point
            )
        return self._sums

    def _own_losses(self) -> list[float]:
        return torch.stack(self._losses).tolist() if self._losses else []

    def _rows(self, observed: list[int], is_urgent: bool) -> torch.Tensor:
        """What is gathered: a head, then loss and weight of each grain, then the exponents."""
        losses = self._own_losses()
        rows = [[float(len(losses)), float(is_urgent)]]
        rows += [[loss, weight] for loss, weight in zip(losses, self._weights, strict=True)]
        rows += [[float(exponent), 0.0] for exponent in observed]
        return torch.tensor(rows, dtype=torch.float64)

    def _read(self, rows: list[list[float]]) -> tuple[list[float], list[float], list[int]]:
        """Losses and weights in the order of the grains, and the largest exponents."""
        losses, weights = [], []
        num_tensors, at = len(self._names()), 0
        observed = [UNUSED] * num_tensors
        self.is_urgent = False
        while at < len(rows):
            num_grains, is_urgent = rows[at]
            self.is_urgent |= is_urgent > 0
            at += 1 + int(num_grains)
            losses += [loss for loss, _ in rows[at - int(num_grains) : at]]
            weights += [weight for _, weight in rows[at - int(num_grains) : at]]
            theirs = [int(exponent) for exponent, _ in rows[at : at + num_tensors]]
            observed = [max(pair) for pair in zip(observed, theirs, strict=True)]
            at += num_tensors
        return losses, weights, observed

    def _follow(self, observed: list[int]) -> None:
        """Set the scales that the maxima ask for; take the step again if they were wrong for it."""
        fixed_point, exponents = self._mode.fixed_point, self._scales.exponents
        found = dict(zip(self._names(), observed, strict=True))
        wrong = [n for n, e in found.items() if fixed_point.is_wrong(exponents[n], e)]
        if wrong and self._is_second_try:
            raise InvariantError(
                f"reproducible: {wrong[0]} came out differently when the step was taken again"
            )
        for name in wrong:
            exponents[name] = max(found[name], SMALLEST)
        if wrong:
            raise TakeAgain
        for name, exponent in found.items():
            exponents[name] = fixed_point.next_assumed(exponents[name], exponent)

    def _publish(self, observed: list[int]) -> None:
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
        self._grain_buffers.publish(views[len(self._parameters) :])


def _are_finite(losses: Iterable[float], observed: Iterable[int]) -> bool:
    return all(map(math.isfinite, losses)) and NON_FINITE not in observed
