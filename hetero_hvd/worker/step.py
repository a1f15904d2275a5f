"""One optimizer step: forward and backward in micro-batches, exact reduction, clip, apply."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn import Parameter

from hetero_hvd.errors import TransientError, UserError
from hetero_hvd.probes.timing import Event, PhaseClock
from hetero_hvd.worker.bad_numbers import BadNumbers
from hetero_hvd.worker.buffers import BufferAverage
from hetero_hvd.worker.collective import Collective
from hetero_hvd.worker.emulation import Emulation
from hetero_hvd.worker.loader import Slice
from hetero_hvd.worker.micro_batch import split, to_device
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.reducer import Reducer
from hetero_hvd.worker.replica import Stateful
from hetero_hvd.worker.sizing import Sizing
from hetero_hvd.worker.solo import SoloCollective
from hetero_hvd.worker.sync_batch_norm import find_rounds

Loss = torch.Tensor | tuple[torch.Tensor, torch.Tensor | float]
"""Mean loss over a micro-batch's samples, or (mean loss, weight) if it is over something else."""


Urgency = Callable[[int, float | None], bool]


def never(_num_samples: int, _busy_seconds: float | None) -> bool:
    """Nothing is urgent."""
    return False


class TakeAgain(TransientError):  # noqa: N818 - control flow
    """The sums of this step cannot be used: take it again, on all workers."""


class Step:
    """The steps of one model, one after the other.

    With samples as weights, each micro-batch of n samples contributes n / N times the gradient of
    its mean loss; the sum over micro-batches and workers is the gradient of the mean over the N
    samples of the global batch. With other weights w the contributions are w / N, and the sum is
    divided by W / N after the reduction, W being the sum of all weights, reduced along.

    Args:
        model: The user's model.
        optimizer: The user's optimizer.
        options: How to take a step.
        device: Where the model is.

    Attributes:
        sizing: Chooses the size of the micro-batches.
        rounds: In which layers that normalise over all workers meet them.
        emulation: Slows the compute down; None: it does not.
        is_urgent: Whether any worker wanted an exchange in the last step; the same on all.
        again: Whether the step has to be taken again with the same part.
        scales: State that the steps keep; None if there is none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        options: StepOptions,
        device: torch.device,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserError(
                "optimizer LBFGS evaluates the loss several times a step: not supported"
            )
        _check(model, optimizer)
        self._optimizer = optimizer
        self._options = options
        self._device = device
        self._reducer = Reducer(
            model.parameters(), bucket_bytes=options.bucket_bytes, compression=options.compression
        )
        self._buffers = BufferAverage(model)
        self._bad_numbers = BadNumbers()
        self._slice: Slice | None = None
        self._collective: Collective = SoloCollective()
        self._micro: tuple[int, bool] = (0, False)
        self._began_at = 0.0
        self._weight = 0.0
        self._weighted_loss = torch.zeros((), dtype=torch.float64)
        self.sizing = Sizing.of(options, device)
        self.rounds = find_rounds(model)
        self.emulation: Emulation | None = None
        self.is_urgent = False
        self.again = False
        self.scales: Stateful | None = None
        self.clock = PhaseClock(_device_event if device.type == "cuda" else None)

    def begin(self, collective: Collective, part: Slice) -> None:
        """Start a step on this worker's part of the global batch."""
        self._start(part)
        self._collective = collective
        self.rounds.begin_step()
        with self.clock.phase("optimizer"):  # what `zero_grad` would be
            self._buffers.remember()
            self._reducer.prepare(collective)

    def try_smaller(self) -> bool:
        """Memory does not suffice: begin the step anew with smaller micro-batches, if there are.

        Gradients that are being reduced already stay: a bucket is submitted when the last
        micro-batch has contributed to it.
        """
        if not self.sizing.fail():
            return False
        self._buffers.restore()
        self._start(self._current())
        self._reducer.prepare_again()
        self.clock.take()  # what was in vain is not the time that the step takes
        return True

    def _start(self, part: Slice) -> None:
        self._slice = part
        self._began_at = time.perf_counter()
        self._weight = 0.0
        self._weighted_loss = torch.zeros((), dtype=torch.float64, device=self._device)

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The batch in pieces on the device, in order."""
        part = self._current()
        if not part.num_samples:
            return
        size = self.sizing.choose(part.num_samples)
        self._reducer.overlap = self.emulation is None and self.sizing.is_proven
        with self.clock.phase("comm_wait"):
            self.rounds.agree(self._collective, -(-part.num_samples // size))
        done = 0
        for num_samples, piece in split(batch, num_samples=part.num_samples, size=size):
            done += num_samples
            self._micro = (num_samples, done == part.num_samples)
            with self.clock.phase("transfer"):
                moved = [to_device(item, self._device) for item in piece]
            self.rounds.next()
            yield moved

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around the user's loss function."""
        with self.clock.phase("forward"):
            start = time.perf_counter()
            yield
            if self.emulation is not None:
                self.emulation.stretch(start)

    def backward(self, loss: Loss) -> None:
        """Add one micro-batch's contribution to the gradients."""
        num_samples, _ = self._micro
        mean, weight = loss if isinstance(loss, tuple) else (loss, num_samples)
        if mean.dim():
            raise UserError(f"the loss has shape {tuple(mean.shape)}: must be a scalar, the mean")
        weight = float(weight)
        if weight < 0:
            raise UserError(f"the weight of a loss is {weight}: must be >= 0")
        if weight == 0:  # a mean over nothing is NaN: it must not spoil the sum
            self.rounds.help_backward()
            return
        self._weight += weight
        self._weighted_loss += mean.detach().double() * weight
        self._contribute(mean, weight)

    def _contribute(self, mean: torch.Tensor, weight: float) -> None:
        self._reducer.last_backward = self._micro[1]
        self._differentiate(mean * (weight / self._current().global_samples))

    def _differentiate(self, loss: torch.Tensor) -> None:
        scaler = self._options.scaler
        scaled = loss if scaler is None else scaler.scale(loss)
        with self.clock.phase("backward"):
            start = time.perf_counter()
            scaled.backward()
            if self.emulation is not None:
                self.emulation.stretch(start)

    def finish(self, collective: Collective, urgency: Urgency = never) -> float:
        """Reduce over all workers, and apply.

        Args:
            collective: The rendezvous.
            urgency: Tells from the samples and the busy seconds of this step whether this worker
                wants an exchange of timings now; see `is_urgent`.

        Returns:
            Weighted mean of the loss over the global batch, the same on all workers; NaN if it or
            the gradients were not finite: then nothing was applied, on any worker.

        Raises:
            Interrupted: A reduction broke; parameters and optimizer are untouched, call `undo`.
        """
        part = self._current()
        self._hold(part)
        self.sizing.done()
        with self.clock.phase("comm_wait"):
            self.rounds.finish(collective)
        self.rounds.settle(self.clock)
        is_urgent = urgency(part.num_samples, self.clock.busy_seconds)
        self._reducer.launch_rest()
        self._buffers.launch(collective, part.num_samples / part.global_samples)
        totals = torch.tensor(
            [self._weight, float(self._weighted_loss), is_urgent], dtype=self._reducer.wire_dtype
        )
        handle = collective.sum_async(totals, "totals")
        with self.clock.phase("comm_wait"):
            self._reducer.wait()
            self._buffers.wait(collective)
            collective.wait(handle)
        weight, weighted_loss, num_urgent = totals.tolist()
        self.is_urgent = num_urgent > 0
        if self._options.scaler is None and not (
            math.isfinite(weighted_loss) and self._reducer.is_finite()
        ):
            self._skip(collective)
            return math.nan
        self._reducer.inspects = False
        self._bad_numbers.step_is_good()
        with self.clock.phase("optimizer"):
            self._reducer.publish(part.global_samples / weight if weight else 0.0)
            self._buffers.publish()
            self._apply([p for p in self._reducer.parameters if p.grad is not None])
        return weighted_loss / weight if weight else 0.0

    def _skip(self, collective: Collective) -> None:
        """Find out whose numbers are not finite; if no loss says it, take the step once more."""
        is_mine = not (math.isfinite(float(self._weighted_loss)) and self._reducer.own_is_finite)
        guilty = self._bad_numbers.guilty(collective, is_mine=is_mine)
        if not guilty and not self._reducer.inspects:
            self._reducer.inspects = True
            raise TakeAgain("only the gradients are not finite: look whose")
        self._reducer.inspects = False
        self._bad_numbers.step_is_bad(collective, guilty)
        self._buffers.restore()

    def undo(self) -> None:
        """Forget a step that was not applied."""
        self._buffers.restore()

    def _hold(self, part: Slice) -> None:
        if self.emulation is not None:
            with self.clock.phase("backward"):
                self.emulation.hold(self._began_at, part.num_samples)

    def _apply(self, reduced: list[Parameter]) -> None:
        scaler, clip = self._options.scaler, self._options.clip
        if scaler is not None and not reduced:
            return  # nobody used anything; a scaler cannot step without a gradient
        if scaler is not None:
            scaler.scale(torch.zeros((), device=self._device))  # a worker without samples never did
            scaler.unscale_(self._optimizer)
        if clip is not None:
            clip(reduced)
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()

    def _current(self) -> Slice:
        if self._slice is None:
            raise UserError("no step is under way: take the batch from trainer.batches()")
        return self._slice


def _check(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what would let the workers drift apart, or could not be reduced."""
    known = {id(parameter) for parameter in model.parameters()}
    groups = optimizer.param_groups
    if any(id(parameter) not in known for group in groups for parameter in group["params"]):
        raise UserError(
            "the optimizer has parameters that are not the model's: give a model that holds them "
            "all, for example torch.nn.ModuleList([model, criterion])"
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UserError(
                f"model.{name}: torch's SyncBatchNorm needs torch.distributed: use "
                "hetero_hvd.convert_sync_batch_norm(model)"
            )
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise UserError(f"model.{name}: sparse gradients are not reduced: use sparse=False")


def _device_event() -> Event:
    return cast("Event", torch.cuda.Event(enable_timing=True))
