"""The forward and backward passes of a step: in pieces that the memory holds, each phase timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.accelerator import device_clock
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.micro_batch.split import split, to_device
from hetero_hvd.worker.step.emulation import Emulation

T = TypeVar("T")


class Passes:
    """The passes of one model; they belong to the part of a step that was begun last.

    Args:
        device: Where the model is.
        sizing: Chooses the size of the micro-batches.
        scaler: Scales losses for float16; None: nothing does.
        clock: Of the phases; None: its own.

    Attributes:
        device: As above.
        sizing: As above.
        clock: The time of each phase.
        emulation: Slows the compute down; None: it does not.
        num_samples: Samples in the micro-batch under way.
        is_last: Whether it is the last one of its part.
        num_begun: Parts that were begun, each time that one is computed again counted.
    """

    def __init__(
        self,
        device: torch.device,
        sizing: MicroBatchSizer,
        scaler: torch.amp.GradScaler | None,
        clock: PhaseClock | None = None,
    ) -> None:
        self.device = device
        self.sizing = sizing
        self.clock = clock or PhaseClock(device_clock(device))
        self.emulation: Emulation | None = None
        self.num_samples = 0
        self.is_last = False
        self.num_begun = 0
        self._scaler = scaler
        self._part: Slice | None = None
        self._began_at = self._waited_before = 0.0
        self._gradient_kind: tuple[object, ...] = ()
        self._first_gradient = torch.empty(())

    def emulate(self, emulation: Emulation | None) -> None:
        """Take the time of another device from now on."""
        self.emulation = emulation

    def begin(self, part: Slice) -> None:
        """A step begins with this part; its time is counted from now on."""
        self._part = part
        self.num_begun += 1
        self._began_at = time.perf_counter()
        self._waited_before = self.clock.waited_seconds

    def go_on(self, part: Slice) -> None:
        """The step under way goes on with another part."""
        self._part = part

    @property
    def part(self) -> Slice:
        """What was begun.

        Raises:
            UserError: Nothing was.
        """
        if self._part is None:
            raise UserError("no step is under way: take the batch from trainer.batches()")
        return self._part

    def pieces(self, batch: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
        """The part's batch on the device, in micro-batches of at most `size` samples."""
        total = self.part.num_samples
        done = 0
        for num_samples, piece in split(batch, num_samples=total, size=size):
            done += num_samples
            self.num_samples = num_samples
            self.is_last = done == total
            with self.clock.phase("transfer"):
                moved = [to_device(item, self.device) for item in piece]
            yield moved

    def forward(self, call: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
        """The user's loss function, called with these."""
        with self.clock.phase("forward"):
            start, waited = time.perf_counter(), self.clock.waited_seconds
            result = call(*arguments)
            if self.emulation is not None:
                self.emulation.stretch(start + self._waited_since(waited))
        return result

    def backward(self, loss: torch.Tensor, factor: float) -> None:
        """One backward pass, of the loss times the factor.

        The factor is what the pass begins with: a product would be one more operation of autograd
        in each direction.
        """
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        with self.clock.phase("backward"):
            start, waited = time.perf_counter(), self.clock.waited_seconds
            scaled.backward(self._gradient(scaled, factor))
            if self.emulation is not None:
                self.emulation.stretch(start + self._waited_since(waited))

    def _gradient(self, loss: torch.Tensor, factor: float) -> torch.Tensor:
        """The factor as a gradient of the loss; most passes begin with the one of the last."""
        kind = factor, loss.shape, loss.dtype, loss.device
        if self._gradient_kind != kind:
            self._gradient_kind = kind
            self._first_gradient = torch.full_like(loss, factor, requires_grad=False)
        return self._first_gradient

    def hold(self, num_samples: int, *, is_last: bool = True) -> None:
        """Let the compute since the step's begin take the time that it is emulated to take.

        What layers that normalise over all workers have waited for them comes on top of it.

        Args:
            num_samples: Samples of this worker in the step so far.
            is_last: Whether it has no more of them.
        """
        if self.emulation is not None:
            with self.clock.phase("backward"):
                since = self._began_at + self._waited_since(self._waited_before)
                self.emulation.hold(since, num_samples, is_last=is_last)

    def _waited_since(self, before: float) -> float:
        """Seconds for which this worker has waited for others, beyond so many."""
        return self.clock.waited_seconds - before
