"""What a step adds up over all workers, and the update that follows; several may be under way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.accelerator import is_accelerator
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.single_process import SingleProcess
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.micro_batch.split import LossParts
from hetero_hvd.worker.model.check import ModelCheck
from hetero_hvd.worker.model.registered import Registered
from hetero_hvd.worker.reduction.bucket import Gradients, submitted_again
from hetero_hvd.worker.reduction.buffer_average import BufferAverage, BufferSum
from hetero_hvd.worker.reduction.in_flight import InFlightStep, OwnPart, in_one_row
from hetero_hvd.worker.reduction.reducer import Reducer
from hetero_hvd.worker.step.lookahead import Lookahead
from hetero_hvd.worker.step.non_finite import NonFiniteGuard
from hetero_hvd.worker.step.optimizer_update import OptimizerUpdate
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.step.training_step import AppliedStep

GUESS_DECAY = 0.99
"""Of the predicted factor in a step: it follows the largest of the last hundred or so."""


class Totals(NamedTuple):
    """The sums over all workers that come before a step's gradients.

    Attributes:
        weight: Sum of all weights.
        weighted_loss: Sum of all losses times their weights.
        is_urgent: Whether any worker wanted an exchange of timings.
        counted: Sum of what the loss functions have counted.
        counts: Sums of what else the workers have submitted.
    """

    weight: float
    weighted_loss: float
    is_urgent: bool
    counted: float
    counts: list[float]


class StepReduction:
    """The sums of the steps of one model.

    With samples as weights, each micro-batch of n samples contributes n / N times the gradient of
    its mean loss; the sum over micro-batches and workers is the gradient of the mean over the N
    samples of the global batch. With other weights w the contributions are w / N, and the sum is
    divided by W / N after the reduction, W being the sum of all weights, reduced along.

    Order of calls: `begin`, `prepare` once the script has nothing to change any more, `add` before
    each backward pass, `submit`; later `wait` and `apply`.

    Args:
        script: What is trained.
        clock: Of the steps' phases.
        staleness: How many steps may be under way.
        may_repeat: Whether a step can be taken again with the same samples.

    Attributes:
        in_flight: The steps that are submitted and not applied yet, oldest first.
    """

    def __init__(
        self, script: Script, clock: PhaseClock, staleness: Staleness, *, may_repeat: bool
    ) -> None:
        options, optimizer = script.options, script.optimizer
        self._options = options
        self._clock = clock
        self._staleness = staleness
        self._may_repeat = may_repeat
        self._registered = Registered(script.model, script.name)
        self._check = ModelCheck(script.model, optimizer)
        self._check.run()
        self._reducer = Reducer(bucket_bytes=options.bucket_bytes, compression=options.compression)
        self._update = OptimizerUpdate(optimizer, options, script.device, script.shards)
        self._lookahead = Lookahead(optimizer, self._update)
        self._buffers = BufferAverage(is_late=staleness.bound > 0)
        self._bad_numbers = NonFiniteGuard()
        self.in_flight: deque[InFlightStep] = deque()
        self._collective: Collective = SingleProcess()
        self._tag_index = 0
        self._weight = self._counted = 0.0
        self._weighted_loss: torch.Tensor | float = 0.0
        self._is_prepared = False
        self._loss_scale = self._samples_per_weight = 1.0

    def begin(self, collective: Collective, part: Slice) -> None:
        """A step begins: it has no sums yet."""
        self._collective = collective
        self._tag_index = part.step_in_epoch % (self._staleness.bound + 1)
        self._is_prepared = False
        self._forget_sums()

    def _forget_sums(self) -> None:
        self._weight = self._counted = 0.0
        self._weighted_loss = 0.0  # and a number of the device with the first loss

    def prepare(self) -> None:
        """Get ready for backward passes.

        Once in a step, and as late as can be: the script may change the model until it computes.
        """
        if self._is_prepared:
            return
        self._is_prepared = True
        with self._clock.phase("optimizer"):  # what `zero_grad` would be
            if self._registered.look():
                self._check.run()
                self._reducer.build(self._registered.parameters.values())
            self._make_ready()
            self._registered.mark()

    def _make_ready(self) -> None:
        self._buffers.remember(self._registered.places)
        if self._options.lookahead:
            self._lookahead.advance(self.in_flight, self._reducer.parameters)
        is_late = self._staleness.bound > 0
        needs_scale = is_late or self._options.compression == "fp16-feedback"
        self._loss_scale = self._update.loss_scale if needs_scale else 1.0
        self._reducer.copies = is_late
        self._reducer.expected_factor = self._samples_per_weight / self._loss_scale
        self._reducer.prepare(self._collective, self._tag_index)

    def allow_overlap(self, is_allowed: bool) -> None:
        """Whether sums may be submitted while the last backward pass is under way."""
        self._reducer.overlap = is_allowed

    def restart(self) -> None:
        """The passes of the step are computed anew; what was submitted stays, as it is final."""
        self._buffers.restore()
        self._forget_sums()
        self._reducer.prepare_again()

    def check_unwritten(self) -> None:
        """Make sure that the forward pass has left the parameters alone.

        Raises:
            UserError: It has not; says which.
        """
        self._registered.check_unwritten()

    def add(self, loss: LossParts, *, is_last: bool) -> None:
        """Account for a micro-batch; a backward pass follows unless its weight is 0.

        Args:
            loss: Of its samples.
            is_last: Whether no other one follows in this step.
        """
        self._counted += loss.counted
        if loss.weight == 0:  # a mean over nothing is NaN: it must not spoil the sum
            return
        self._weight += loss.weight
        # A device is not waited for; on the host a number is added up in a tenth of the time.
        mean = loss.mean.detach()
        number = mean.double() if is_accelerator(mean.device) else mean.item()
        self._weighted_loss += number * loss.weight
        self._reducer.last_backward = is_last

    def submit(
        self,
        collective: Collective,
        part: Slice,
        *,
        is_urgent: bool,
        counts: Sequence[float] = (),
    ) -> None:
        """Submit what this worker adds to the step; parameters and buffers are as before it.

        Args:
            collective: The rendezvous.
            part: What this worker has computed.
            is_urgent: Whether it wants an exchange of timings.
            counts: What else is added up over the workers; as many on all of them.

        Raises:
            Interrupted: The rendezvous broke.
        """
        collective.start_staged()  # before the loss is read, which waits for the device
        own = self._sealed(part)
        buffers = self._buffers.seal(collective, part.num_samples, self._tag_index)
        numbers = is_urgent, own.counted, *counts
        self._start(collective, own, numbers, self._reducer.take, buffers)
        self._lookahead.restore()

    def close(self, part: Slice) -> OwnPart:
        """The step begun gets no further passes, and is to be submitted later.

        Args:
            part: What this worker has computed of it.
        """
        own = self._sealed(part)
        self.leave()
        return own

    def submit_again(
        self, collective: Collective, own: OwnPart, *, counts: Sequence[float]
    ) -> None:
        """Submit what was computed before another rendezvous; `begin` was called for it there.

        Args:
            collective: That rendezvous.
            own: What `close` gave, or what a step under way had; see `keeps_parts`.
            counts: See `submit`.

        Raises:
            Interrupted: It broke, too.
        """
        numbers = False, own.counted, *counts
        take = partial(submitted_again, own.gradients, collective, self._tag_index)
        self._start(collective, own, numbers, take, None)

    @property
    def keeps_parts(self) -> bool:
        """Whether what this worker adds to a step can be submitted twice.

        With error feedback rounding would be made up for twice; changes of buffers are not kept.
        """
        has_buffers = any(place.is_persistent for place in self._registered.places)
        has_feedback = self._options.compression == "fp16-feedback"
        return self._staleness.bound > 0 and not has_feedback and not has_buffers

    def _sealed(self, part: Slice) -> OwnPart:
        """What this worker has computed; it is final."""
        loss = float(self._weighted_loss)
        self._reducer.seal()
        return OwnPart(
            part=part,
            weight=self._weight,
            weighted_loss=loss,
            counted=self._counted,
            loss_scale=self._loss_scale,
            model_code=self._registered.code,
            gradients=self._reducer.sealed,
        )

    def _start(
        self,
        collective: Collective,
        own: OwnPart,
        numbers: Sequence[float],
        take: Callable[[], Gradients],
        buffers: BufferSum | None,
    ) -> None:
        digest = self._registered.digest(own.part, own.model_code)
        facts = [own.weight, own.weighted_loss, *numbers, *digest]
        totals = in_one_row(facts, self._reducer.wire_dtype)
        # One cycle of Horovod with those that follow at once.
        totals_handle = collective.sum_async(totals, f"totals.{self._tag_index}")
        gradients = take()
        if buffers is not None:
            buffers.start(collective)
        check = partial(
            self._registered.check_alike,
            digest=digest,
            part=own.part,
            num_workers=collective.size,
        )
        flight = InFlightStep(
            own=own,
            gradients=gradients,
            buffers=buffers,
            totals=totals,
            totals_handle=totals_handle,
            check=check,
        )
        self.in_flight.append(flight)

    def wait(self, collective: Collective) -> Totals:
        """Wait for the oldest step under way.

        Raises:
            Interrupted: A reduction broke.
            JobError: The workers' models differ.
        """
        flight = self.in_flight[0]
        with self._clock.phase("comm_wait"):
            flight.wait(collective)
        weight, weighted_loss, num_urgent, counted, *counts = flight.totals.tolist()[:-2]
        return Totals(weight, weighted_loss, num_urgent > 0, counted, counts)

    def apply(
        self,
        collective: Collective,
        totals: Totals,
        *,
        num_samples: float,
        lr_factor: float = 1.0,
    ) -> AppliedStep | None:
        """Apply the oldest step under way, if its numbers are finite.

        Args:
            collective: The rendezvous.
            totals: What `wait` gave.
            num_samples: Samples of all workers in it; with 0 nothing changes.
            lr_factor: Of the learning rates, for this step only.

        Returns:
            What was applied; None: the step is to be taken again, to find out whose numbers spoil
            it.

        Raises:
            Interrupted: A question to the others broke.
        """
        flight, weight = self.in_flight[0], totals.weight
        is_finite = math.isfinite(totals.weighted_loss) and flight.gradients.are_finite()
        loss = totals.weighted_loss / weight if weight else 0.0
        if self._options.scaler is None and not is_finite:
            if not self._skip(collective, flight):
                return None
            loss = math.nan
        else:
            self._bad_numbers.step_is_good()
            if flight.gradients.own_are_finite is not None:
                self._reducer.inspects = False
            with self._clock.phase("optimizer"):
                self._update.clear()
                if num_samples:
                    flight.gradients.write_back(self._factor(flight, weight))
                    self._buffers.write_back(flight.buffers, num_samples)
                    self._update.apply(self._reducer.parameters, lr_factor)
                self._settle(flight, weight if is_finite else 0.0)
            self.in_flight.popleft()
        return AppliedStep(
            loss=loss,
            num_samples=round(num_samples),
            is_urgent=totals.is_urgent,
            counted=totals.counted,
        )

    def _settle(self, flight: InFlightStep, weight: float) -> None:
        """What rounding has lost is known now that the sum of all weights is; 0: nothing applied.

        The next factor from a sum to a gradient is predicted: more than the last ones were, as what
        is owed would grow without end if it were added at less than half the true factor.
        """
        if not weight:
            flight.gradients.settle(None)
            return
        ratio = flight.own.part.global_samples / weight
        flight.gradients.settle(ratio / flight.own.loss_scale)
        self._samples_per_weight = max(ratio, GUESS_DECAY * self._samples_per_weight)

    def _factor(self, flight: InFlightStep, weight: float) -> float:
        """From the sum to the gradient of the mean, at the loss scale of now."""
        own = flight.own
        scale = self._update.loss_scale / own.loss_scale if self._staleness.bound else 1.0
        return scale * own.part.global_samples / weight if weight else 0.0

    def _skip(self, collective: Collective, flight: InFlightStep) -> bool:
        """Find out whose numbers are not finite; False: only by taking the step again."""
        are_finite = flight.gradients.own_are_finite
        is_mine = not flight.own.is_finite or are_finite is False
        guilty = self._bad_numbers.guilty(collective, is_mine=is_mine)
        self._reducer.inspects = not guilty and are_finite is None
        may_repeat = self._may_repeat and not self._staleness.now
        if self._reducer.inspects and len(self.in_flight) == 1 and may_repeat:
            return False  # only the gradients are not finite: look whose
        self._bad_numbers.step_is_bad(collective, guilty)
        self.in_flight.popleft()
        flight.gradients.settle(None)
        self._buffers.drop()
        return True

    def restore(self) -> None:
        """Parameters and buffers are again as after the last update."""
        self._lookahead.restore()
        self._buffers.restore()

    def leave(self) -> None:
        """The same, and what the script or another worker writes from now on stays."""
        self._lookahead.restore()
        self._buffers.drop()

    def abort(self) -> None:
        """Drop all steps that were not applied."""
        for flight in self.in_flight:
            flight.gradients.settle(None)
        self.in_flight.clear()
        self.leave()

    def release(self) -> None:
        """Training is over: let go of the model."""
        self._reducer.release()
        self._registered.forget()
