"""A step of the synchronous mode: all workers' shares of the global batch, reduced together.

With a staleness bound it is applied some steps later, at the same step on all workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.single_process import SingleProcess
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.micro_batch.split import Loss, parts_of
from hetero_hvd.worker.model.sync_batch_norm import find_rounds
from hetero_hvd.worker.reduction.in_flight import ExchangeTrigger, InFlightStep
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.step_reduction import StepReduction
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.step.training_step import AppliedStep, Course, Retry, planned_parts


class SynchronousStep:
    """The synchronous steps of one model; see `TrainingStep` for what each method promises.

    Layers that normalise over all workers meet the others in each pass.

    Args:
        script: What is trained.
        loader: Hands out this worker's shares.
        staleness: How many steps may be under way.

    Attributes:
        passes: See `TrainingStep`.
    """

    def __init__(self, script: Script, loader: ShareLoader, staleness: Staleness) -> None:
        self.passes = script.passes()
        self._sums = StepReduction(script, self.passes.clock, staleness, may_repeat=True)
        self._rounds = find_rounds(script.model)
        self._loader = loader
        self._shards = script.shards
        self._collective: Collective = SingleProcess()
        self._tried: Slice | None = None

    @property
    def in_flight(self) -> deque[InFlightStep]:
        """See `TrainingStep`."""
        return self._sums.in_flight

    @property
    def state(self) -> Mapping[str, Stateful]:
        """Nothing."""
        return {}

    def parts(self, course: Course) -> Iterator[Slice]:
        """One in each step, as the plan says."""
        return planned_parts(self._loader, course)

    def check_evaluation(self) -> None:
        """All workers are at the same step, always."""

    def try_passes(
        self, loss_function: Callable[..., Loss], batch: Sequence[Any], part: Slice
    ) -> None:
        """Passes of this worker alone, of which nothing is submitted; then `forget_trial`.

        Args:
            loss_function: The script's.
            batch: The part's, as the script gives it.
            part: Of the step that has begun, or fewer samples of that.
        """
        passes = self.passes
        self._tried = self._tried or passes.part
        self._sums.prepare()
        passes.begin(part)
        for micro_batch in passes.pieces(batch, passes.sizing.choose(part.num_samples)):
            loss = parts_of(
                self.compute(loss_function, micro_batch), num_samples=passes.num_samples
            )
            if loss.weight:
                passes.backward(loss.mean, loss.weight / part.global_samples)

    def forget_trial(self) -> None:
        """The step is as it was when it began."""
        passes = self.passes
        self._sums.restart()
        passes.clock.take()
        passes.begin(self._tried or passes.part)
        self._tried = None

    def begin(self, collective: Collective, part: Slice, *, again: bool = False) -> None:  # noqa: ARG002
        """Start a step on this worker's part of the global batch."""
        self.passes.begin(part)
        self._collective = collective
        self._rounds.begin_step()
        self._sums.begin(collective, part)

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The batch in pieces on the device, in order."""
        passes = self.passes
        num_samples = passes.part.num_samples
        if not num_samples:
            return
        self._sums.prepare()
        size = passes.sizing.choose(num_samples)
        self._sums.allow_overlap(passes.emulation is None and passes.sizing.is_proven)
        self._rounds.agree(self._collective, -(-num_samples // size), passes.clock)
        for micro_batch in passes.pieces(batch, size):
            self._rounds.next()
            yield micro_batch

    def compute(self, loss_function: Callable[..., Loss], micro_batch: Sequence[Any]) -> Loss:
        """The user's function, in a forward pass."""
        return self.passes.forward(loss_function, *micro_batch)

    def backward(self, loss: Loss) -> None:
        """Add one micro-batch's contribution to the gradients."""
        passes = self.passes
        self._sums.check_unwritten()
        parts = parts_of(loss, num_samples=passes.num_samples)
        self._sums.add(parts, is_last=passes.is_last)
        if parts.weight == 0:
            self._rounds.help_backward()
            return
        passes.backward(parts.mean, parts.weight / passes.part.global_samples)

    def try_smaller(self) -> Retry:
        """Begin the step anew with smaller micro-batches, if any; gradients under way stay."""
        passes = self.passes
        if not passes.sizing.reject():
            return Retry.IMPOSSIBLE
        self._sums.restart()
        passes.clock.take()  # what was in vain is not the time that the step takes
        passes.begin(passes.part)
        if self._rounds.is_open:
            self._collective.cut()
            self._rounds.break_off("out of memory: all take the step again")
            return Retry.MEMBERSHIP
        return Retry.PART

    def part_done(self, collective: Collective) -> bool:  # noqa: ARG002 - see `TrainingStep`
        """A step has one part."""
        return True

    def submit(self, collective: Collective, urgency: ExchangeTrigger) -> int:
        """Submit this worker's gradients."""
        passes = self.passes
        part, clock = passes.part, passes.clock
        self._sums.prepare()
        passes.hold(part.num_samples)
        passes.sizing.done()
        self._rounds.finish(collective, clock)
        is_urgent = urgency(part.num_samples, clock.is_immediate)
        counts = [0.0] * (collective.size if self._shards is not None else 0)
        if self._shards is not None:
            counts[collective.rank] = self._shards.wishes.own
        self._sums.submit(collective, part, is_urgent=is_urgent, counts=counts)
        return part.num_samples

    def apply_oldest(self, collective: Collective) -> AppliedStep | None:
        """Wait for the oldest step under way, and apply it."""
        totals = self._sums.wait(collective)
        num_samples = self.in_flight[0].own.part.global_samples
        if self._shards is not None:
            self._shards.wishes.hear(totals.counts)
        return self._sums.apply(collective, totals, num_samples=num_samples)

    def restore(self) -> None:
        """See `TrainingStep`."""
        self._sums.restore()

    def abort(self) -> None:
        """See `TrainingStep`."""
        self._sums.abort()

    def release(self) -> None:
        """See `TrainingStep`."""
        self._sums.release()
