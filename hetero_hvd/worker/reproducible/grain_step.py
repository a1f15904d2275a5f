"""A step that gives the same bits however its global batch is divided.

Each grain is one forward and backward, from the same buffers and with generators seeded for it.
What grains contribute (gradients, changes of running statistics) is added up in fixed point; losses
and weights, a few numbers, are gathered and added in the order of the grains. What follows (clip,
scaler, optimizer) sees sums only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.core.numerics.fixed_point import NON_FINITE, SMALLEST, UNUSED
from hetero_hvd.errors import InvariantError, UserError
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.data.repeatable import Repeatable
from hetero_hvd.worker.data.seeding import Seeds
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.micro_batch.split import Loss, own_memory, to_device
from hetero_hvd.worker.model.registered import Digest
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.reproducible.fixed_point_sums import FixedPointSums
from hetero_hvd.worker.reproducible.grain_buffers import GrainBuffers
from hetero_hvd.worker.reproducible.mode import Reproducible, refuse_model
from hetero_hvd.worker.step.in_flight import ExchangeTrigger, TakeAgain, no_trigger
from hetero_hvd.worker.step.step import Step


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
        self._model = model
        self._grain_buffers = GrainBuffers()
        self.scales = self._scales = Scales()
        self._parameters: dict[str, Parameter] = {}
        self._sums: FixedPointSums | None = None
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._used: list[bool] = []
        self._is_second_try = self._has_failed = False
        self._loss_functions = Repeatable("the loss function", model)
        self._grain = 0
        self.sizing = MicroBatchSizer(mode.grain, device, is_fixed=True)

    def begin(self, collective: Collective, part: Slice) -> None:  # noqa: ARG002 - see `Step`
        """Start a step on this worker's grains."""
        self._start(part)
        self._is_second_try = self.again
        self._has_failed = False
        self._is_prepared = False
        self._seeds.use(Stream.SCRIPT)

    def _ask_model(self) -> None:
        """Follow what the script has changed since the last step."""
        is_new = self._registered.look()
        self._grain_buffers.remember(self._registered.places)
        if is_new:
            self._check.run()
            refuse_model(self._model)
            named = self._registered.parameters
            self._parameters = {name: p for name, p in named.items() if p.requires_grad}
            sizes = [p.numel() for p in self._parameters.values()] + self._grain_buffers.sizes
            self._sums = FixedPointSums(
                sizes, device=self._device, fixed_point=self._mode.fixed_point
            )

    def _make_ready(self) -> None:
        sums = self._prepared()
        for parameter in self._registered.parameters.values():
            parameter.grad = None
        assumed = [self._scales.exponents.setdefault(name, 0) for name in self._names()]
        sums.begin(assumed, num_grains=self._mode.num_grains)
        self._losses = []
        self._weights = []
        self._used = [False] * len(self._parameters)

    def try_smaller(self) -> bool:
        """A grain is never cut: the step begins anew, once, with what memory was given back."""
        if self._has_failed:
            return False
        self._has_failed = True
        self._grain_buffers.restore()
        self._start(self._current())
        self._make_ready()
        self.clock.take()
        return True

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The grains on the device, in order, with everything reset for each."""
        part = self._current()
        if not part.num_samples:
            return
        self._prepare()
        if part.grains is None:
            raise InvariantError("a part of a step has no grains")
        first = part.first_sample // self._mode.grain
        self.sizing.choose(part.num_samples)
        pieces = zip(part.grains.sizes, part.grains.pieces(batch), strict=True)
        for self._grain, (num_samples, piece) in enumerate(pieces, first):
            with self.clock.phase("transfer"):
                moved = [own_memory(to_device(item, self._device)) for item in piece]
                self._micro = (num_samples, False)
                self._put_back()
            yield moved

    def compute(self, loss_function: Callable[..., Loss], micro_batch: Sequence[Any]) -> Loss:
        """See `Step.compute`; what cannot be reproduced is refused."""
        with self.forward():
            loss: Loss = self._loss_functions.call(
                loss_function, micro_batch, put_back=self._put_back
            )
        return loss

    def _put_back(self) -> None:
        """Every grain starts from the step's buffers, with its own random numbers."""
        self._grain_buffers.restore()
        self._seeds.use(Stream.MODEL, self._grain)

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

    def launch(self, collective: Collective, urgency: ExchangeTrigger = no_trigger) -> int:
        """Submit this worker's grains; see `Step.launch`."""
        self._prepare()
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
            gathered = collective.wait(self.in_flight[0])
            losses, weights, observed = self._read(collective, gathered.tolist())
            sums.wait(collective)
        if self._options.scaler is None and not _are_finite(losses, observed):
            is_mine = not all(map(math.isfinite, self._own_losses()))
            guilty = self._bad_numbers.guilty(collective, is_mine=is_mine)
            self._bad_numbers.step_is_bad(collective, guilty)
            self._grain_buffers.drop()
            self.in_flight.popleft()
            return math.nan
        self._bad_numbers.step_is_good()
        self._follow(observed)
        self.in_flight.popleft()
        weight = sum(weights)
        with self.clock.phase("optimizer"):
            factor = part.global_samples / weight if weight else 0.0
            number = self._grain_buffers.number
            self._update.clear()
            sums.decode([factor] * len(self._parameters) + [1.0] * number)
            self._publish(observed)
            self._seeds.use(Stream.UPDATE)
            self._update.apply(list(self._parameters.values()))
            Seeds(self._mode.seed, part.epoch, part.step_in_epoch + 1).use(Stream.SCRIPT)
        return sum(losses) / weight if weight else 0.0

    def put_back(self) -> None:
        """The buffers are again as after the last update; the step begun is dropped."""
        self._grain_buffers.restore()

    def undo(self) -> None:
        """Forget a step that was not applied."""
        self.in_flight.clear()
        self._grain_buffers.drop()

    @property
    def _seeds(self) -> Seeds:
        part = self._current()
        return Seeds(self._mode.seed, part.epoch, part.step_in_epoch)

    def _names(self) -> list[str]:
        return [*self._parameters, *self._grain_buffers.names]

    def _prepared(self) -> FixedPointSums:
        """The sums of the step."""
        assert self._sums is not None  # noqa: S101 - made before
        return self._sums

    def _own_losses(self) -> list[float]:
        return torch.stack(self._losses).tolist() if self._losses else []

    def _rows(self, observed: list[int], is_urgent: bool) -> torch.Tensor:
        """What is gathered: a head, then loss and weight of each grain, then the exponents."""
        losses = self._own_losses()
        rows = [[float(len(losses)), float(is_urgent)], list(self._digest())]
        rows += [[loss, weight] for loss, weight in zip(losses, self._weights, strict=True)]
        rows += [[float(exponent), 0.0] for exponent in observed]
        return torch.tensor(rows, dtype=torch.float64)

    def _digest(self) -> Digest:
        part = self._current()
        return self._registered.digest(part.epoch, part.step_in_epoch)

    def _read(
        self, collective: Collective, rows: list[list[float]]
    ) -> tuple[list[float], list[float], list[int]]:
        """Losses and weights in the order of the grains, and the largest exponents.

        Raises:
            JobError: The workers' models differ.
        """
        losses, weights = [], []
        num_tensors, at = len(self._names()), 0
        observed = [UNUSED] * num_tensors
        self.is_urgent = False
        while at < len(rows):
            (num_grains, is_urgent), theirs = rows[at : at + 2]
            self._registered.check_alike(
                collective, theirs, digest=self._digest(), part=self._current(), num_workers=1
            )
            self.is_urgent |= is_urgent > 0
            at += 2 + int(num_grains)
            losses += [loss for loss, _ in rows[at - int(num_grains) : at]]
            weights += [weight for _, weight in rows[at - int(num_grains) : at]]
            exponents = [int(exponent) for exponent, _ in rows[at : at + num_tensors]]
            observed = [max(pair) for pair in zip(observed, exponents, strict=True)]
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
