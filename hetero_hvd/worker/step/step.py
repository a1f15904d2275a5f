"""One optimizer step: forward and backward in micro-batches, exact reduction, clip, apply."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.probes.phase_clock import Event, PhaseClock
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.single_process import SingleProcess
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.micro_batch.split import Loss, mean_and_weight, split, to_device
from hetero_hvd.worker.model.check import ModelCheck
from hetero_hvd.worker.model.registered import Registered
from hetero_hvd.worker.model.sync_batch_norm import find_rounds
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.session.launch_settings import read_place
from hetero_hvd.worker.step.buffer_average import BufferAverage
from hetero_hvd.worker.step.emulation import Emulation
from hetero_hvd.worker.step.in_flight import ExchangeTrigger, InFlightStep, TakeAgain, no_trigger
from hetero_hvd.worker.step.lookahead import Lookahead
from hetero_hvd.worker.step.non_finite import NonFiniteGuard
from hetero_hvd.worker.step.optimizer_update import OptimizerUpdate
from hetero_hvd.worker.step.reducer import Reducer
from hetero_hvd.worker.step.staleness import Staleness

GUESS_DECAY = 0.99
"""Of the guessed factor in a step: it follows the largest of the last hundred or so."""


class Step:
    """The steps of one model.

    With samples as weights, each micro-batch of n samples contributes n / N times the gradient of
    its mean loss; the sum over micro-batches and workers is the gradient of the mean over the N
    samples of the global batch. With other weights w the contributions are w / N, and the sum is
    divided by W / N after the reduction, W being the sum of all weights, reduced along.

    Args:
        model: The user's model.
        optimizer: The user's optimizer.
        options: How to take a step.
        device: Where the model is.
        staleness: How many steps may be under way.

    Attributes:
        in_flight: The steps that are submitted and not applied yet, oldest first.
        sizing: Chooses the size of the micro-batches.
        rounds: In which layers that normalise over all workers meet them.
        emulation: Slows the compute down; None: it does not.
        is_urgent: Whether any worker wanted an exchange in the last step; the same on all.
        again: Whether the step has to be taken again with the same part.
        has_restarted: Whether all parts of the step have to be computed again.
        scales: State that the steps keep; None if there is none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        options: StepOptions,
        device: torch.device,
        staleness: Staleness | None = None,
    ) -> None:
        self._options = options
        self._device = device
        self._registered = Registered(model)
        self._check = ModelCheck(model, optimizer)
        self._check.run()
        self._reducer = Reducer(bucket_bytes=options.bucket_bytes, compression=options.compression)
        self._staleness = staleness or Staleness(0)
        self._update = OptimizerUpdate(optimizer, options, device)
        self._lookahead = Lookahead(optimizer, self._update)
        self._buffers = BufferAverage(is_late=self._staleness.bound > 0)
        self._bad_numbers = NonFiniteGuard()
        self.in_flight: deque[Any] = deque()
        self._slice: Slice | None = None
        self._collective: Collective = SingleProcess()
        self._micro: tuple[int, bool] = (0, False)
        self._began_at = 0.0
        self._weight = 0.0
        self._weighted_loss = torch.zeros((), dtype=torch.float64)
        self._is_prepared = False
        self._loss_scale = self._samples_per_weight = 1.0
        self.sizing = MicroBatchSizer.of(options, device, read_place().launch.max_micro_batch)
        self.rounds = find_rounds(model)
        self.emulation: Emulation | None = None
        self.is_urgent = self.again = self.has_restarted = False
        self.scales: Stateful | None = None
        self.clock = PhaseClock(_device_event if device.type == "cuda" else None)

    def begin(self, collective: Collective, part: Slice) -> None:
        """Start a step on this worker's part of the global batch."""
        self._start(part)
        self._collective = collective
        self.rounds.begin_step()
        self._is_prepared = False

    def _prepare(self) -> None:
        """Once in a step, as late as can be: the script may change the model until it computes."""
        if self._is_prepared:
            return
        self._is_prepared = True
        with self.clock.phase("optimizer"):  # what `zero_grad` would be
            self._ask_model()
            self._make_ready()
            self._registered.mark()

    def _ask_model(self) -> None:
        """Follow what the script has changed since the last step."""
        if self._registered.look():
            self._check.run()
            self._reducer.build(self._registered.parameters.values())

    def _make_ready(self) -> None:
        self._buffers.remember(self._registered.places)
        if self._options.lookahead:
            self._lookahead.advance(self.in_flight, self._reducer.parameters)
        is_late = self._staleness.bound > 0
        needs_scale = is_late or self._options.compression == "fp16-feedback"
        self._loss_scale = self._update.loss_scale if needs_scale else 1.0
        self._reducer.copies = is_late
        self._reducer.expected_factor = self._samples_per_weight / self._loss_scale
        self._reducer.prepare(self._collective, self._lane(self._current()))

    def try_smaller(self) -> bool:
        """Begin the step anew with smaller micro-batches, if any; gradients under way stay."""
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
        self._prepare()
        size = self.sizing.choose(part.num_samples)
        self._reducer.overlap = self.emulation is None and self.sizing.is_proven
        self.rounds.agree(self._collective, -(-part.num_samples // size), self.clock)
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

    def compute(self, loss_function: Callable[..., Loss], micro_batch: Sequence[Any]) -> Loss:
        """The loss of one of `micro_batches`, as the user's function gives it."""
        with self.forward():
            return loss_function(*micro_batch)

    def backward(self, loss: Loss) -> None:
        """Add one micro-batch's contribution to the gradients."""
        self._registered.check_unwritten()
        mean, weight = mean_and_weight(loss, num_samples=self._micro[0])
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

    @property
    def is_due(self) -> bool:
        """Whether a step has to be applied before the next one begins."""
        return len(self.in_flight) > self._staleness.now

    def launch(self, collective: Collective, urgency: ExchangeTrigger = no_trigger) -> int:
        """Submit what this worker adds to the step, and return of how many samples.

        Args:
            collective: The rendezvous.
            urgency: Whether this worker wants an exchange of timings now; see `is_urgent`.

        Raises:
            Interrupted: The rendezvous broke; call `undo`.
        """
        part, lane = self._current(), self._lane(self._current())
        self._prepare()
        self._hold(part)
        self.sizing.done()
        self.rounds.finish(collective, self.clock)
        self.is_urgent = False
        is_urgent = urgency(part.num_samples, self.clock.busy_seconds)
        loss = float(self._weighted_loss)
        digest = self._registered.digest(part.epoch, part.step_in_epoch)
        facts = [self._weight, loss, is_urgent, *self._own_counts(), *digest]
        totals = torch.tensor(facts, dtype=self._reducer.wire_dtype)
        totals_handle = collective.sum_async(totals, f"totals.{lane}")  # one cycle with the next
        gradients = self._reducer.take()
        buffers = self._buffers.launch(collective, part.num_samples, lane)
        flight = InFlightStep(
            part=part,
            gradients=gradients,
            buffers=buffers,
            totals=totals,
            totals_handle=totals_handle,
            own_weight=self._weight,
            own_loss_is_finite=math.isfinite(loss),
            loss_scale=self._loss_scale,
            check=partial(
                self._registered.check_alike,
                digest=digest,
                part=part,
                num_workers=collective.size,
            ),
        )
        self.in_flight.append(flight)
        self._lookahead.restore()
        return part.num_samples

    def land(self, collective: Collective) -> float:
        """Wait for the oldest step under way, and apply it.

        Returns:
            Weighted mean of the loss over the global batch, the same on all workers; NaN if it or
            the gradients were not finite: then nothing was applied, on any worker.

        Raises:
            Interrupted: A reduction broke; parameters and optimizer are untouched, call `undo`.
        """
        flight: InFlightStep = self.in_flight[0]
        with self.clock.phase("comm_wait"):
            flight.wait(collective)
        weight, weighted_loss, num_urgent = flight.totals[:3].tolist()
        self.is_urgent = num_urgent > 0
        is_finite = math.isfinite(weighted_loss) and flight.gradients.are_finite()
        if self._options.scaler is None and not is_finite:
            self._skip(collective, flight)
            return math.nan
        self._bad_numbers.step_is_good()
        if flight.gradients.own_are_finite is not None:
            self._reducer.inspects = False
        with self.clock.phase("optimizer"):
            self._update.clear()
            self._apply(flight, weight)
            self._settle(flight, weight if is_finite else 0.0)
        self.in_flight.popleft()
        return weighted_loss / weight if weight else 0.0

    def _apply(self, flight: InFlightStep, weight: float) -> None:
        flight.gradients.publish(self._factor(flight, weight))
        self._buffers.publish(flight.buffers, flight.part.global_samples)
        self._update.apply(self._reducer.parameters)

    def _settle(self, flight: InFlightStep, weight: float) -> None:
        """What rounding has lost is known now that the sum of all weights is; 0: nothing applied.

        The next factor from a sum to a gradient is guessed: more than the last ones were, as what
        is owed would grow without end if it were added at less than half the true factor.
        """
        if not weight:
            flight.gradients.settle(None)
            return
        ratio = flight.part.global_samples / weight
        flight.gradients.settle(ratio / flight.loss_scale)
        self._samples_per_weight = max(ratio, GUESS_DECAY * self._samples_per_weight)

    def _own_counts(self) -> Sequence[float]:
        """What else is summed over the workers."""
        return ()

    def _factor(self, flight: InFlightStep, weight: float) -> float:
        """From the sum to the gradient of the mean, at the loss scale of now."""
        scale = self._update.loss_scale / flight.loss_scale if self._staleness.bound else 1.0
        return scale * flight.part.global_samples / weight if weight else 0.0

    def _skip(self, collective: Collective, flight: InFlightStep) -> None:
        """Find out whose numbers are not finite; if no loss says it, by taking the step again."""
        are_finite = flight.gradients.own_are_finite
        is_mine = not flight.own_loss_is_finite or are_finite is False
        guilty = self._bad_numbers.guilty(collective, is_mine=is_mine)
        if not guilty and are_finite is None:
            self._reducer.inspects = True
            if len(self.in_flight) == 1 and self._may_take_again:
                raise TakeAgain("only the gradients are not finite: look whose")
        else:
            self._reducer.inspects = False
        self._bad_numbers.step_is_bad(collective, guilty)
        self.in_flight.popleft()
        flight.gradients.settle(None)
        self._buffers.drop()

    @property
    def _may_take_again(self) -> bool:
        return not self._staleness.now

    def put_back(self) -> None:
        """Parameters and buffers are again as after the last update; the step begun is dropped."""
        self._lookahead.restore()
        self._buffers.restore()

    def undo(self) -> None:
        """Forget all steps that were not applied."""
        for flight in self.in_flight:
            flight.gradients.settle(None)
        self.in_flight.clear()
        self.put_back()
        self._buffers.drop()

    def release(self) -> None:
        """Training is over: let go of the model."""
        self._reducer.release()
        self._registered.forget()

    def _lane(self, part: Slice) -> int:
        return part.step_in_epoch % (self._staleness.bound + 1)

    def _hold(self, part: Slice) -> None:
        if self.emulation is not None:
            with self.clock.phase("backward"):
                self.emulation.hold(self._began_at, part.num_samples)

    def _current(self) -> Slice:
        if self._slice is None:
            raise UserError("no step is under way: take the batch from trainer.batches()")
        return self._slice


def _device_event() -> Event:
    return cast("Event", torch.cuda.Event(enable_timing=True))
