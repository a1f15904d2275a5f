"""A step that grows chunk by chunk until its round is closed: see `worker.wait_free.rounds`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.accelerator import DeviceEvent, is_accelerator
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.micro_batch.split import Loss, parts_of
from hetero_hvd.worker.model.sync_batch_norm import find_rounds
from hetero_hvd.worker.reduction.in_flight import ExchangeTrigger, InFlightStep, OwnPart
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.step_reduction import StepReduction
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.step.training_step import AppliedStep, Course, KeptParts, Retry
from hetero_hvd.worker.wait_free.rounds import ChunkRounds


class RoundStep:
    """The rounds of one model; each is as large as it became. See `TrainingStep` for the methods.

    A sample counts the same whichever worker takes it: gradients are summed with their weights and
    divided by the sum of all weights. The learning rate is scaled for each round, as its size
    differs from the batch size that the script has chosen it for.

    Args:
        script: What is trained.
        rounds: Which chunks this worker takes.
        staleness: How many rounds may be under way.

    Attributes:
        passes: See `TrainingStep`.

    Raises:
        UserError: The model has layers that meet the other workers.
    """

    def __init__(self, script: Script, rounds: ChunkRounds, staleness: Staleness) -> None:
        self.passes = script.passes()
        self._sums = StepReduction(script, self.passes.clock, staleness, may_repeat=False)
        if find_rounds(script.model).is_needed:
            raise UserError(
                "wait_free: layers that normalise over all workers would wait for them: use "
                "torch's BatchNorm, or leave out wait_free"
            )
        self._rounds = rounds
        self._staleness = staleness
        self._exponent = _lr_exponent(script.options.wait_free_lr, script.optimizer)
        self._is_open = False
        self._aside: deque[OwnPart] = deque()
        self._kept: KeptParts | None = None
        self._is_closing = False
        self._chunk_end: DeviceEvent | None = None

    @property
    def in_flight(self) -> deque[InFlightStep]:
        """The rounds that are submitted and not applied yet."""
        return self._sums.in_flight

    @property
    def state(self) -> Mapping[str, Stateful]:
        """Nothing: which chunks are done is a part of the position."""
        return {}

    def parts(self, course: Course) -> Iterator[Slice]:
        """Chunk by chunk; the script may have left its loop before a round was full."""
        if not self._rounds.goes_on:
            self.restore()
        return self._rounds.slices(course)

    def check_evaluation(self) -> None:
        """Workers are at different places in an epoch: they can meet at its end only."""
        self._rounds.check_evaluation()

    def begin(self, collective: Collective, part: Slice, *, again: bool = False) -> None:  # noqa: ARG002
        """Go on with the round, or start one."""
        if self._is_open:
            self.passes.go_on(part)
            return
        self._is_open = True
        self.passes.begin(part)
        self._sums.begin(collective, part)

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The chunk in pieces on the device, in order."""
        passes = self.passes
        num_samples = passes.part.num_samples
        if num_samples:
            self._sums.prepare()
            yield from passes.pieces(batch, passes.sizing.choose(num_samples))

    def compute(self, loss_function: Callable[..., Loss], micro_batch: Sequence[Any]) -> Loss:
        """The user's function, in a forward pass."""
        return self.passes.forward(loss_function, *micro_batch)

    def backward(self, loss: Loss) -> None:
        """Add one micro-batch's contribution to the gradients; nothing is reduced yet."""
        passes = self.passes
        self._sums.check_unwritten()
        parts = parts_of(loss, num_samples=passes.num_samples)
        self._sums.add(parts, is_last=False)
        if parts.weight:
            passes.backward(parts.mean, parts.weight / passes.part.global_samples)

    def try_smaller(self) -> Retry:
        """The chunks of this round are computed again, in smaller pieces.

        What they had added to the gradients cannot be told from what the failed one has added.
        """
        passes = self.passes
        self._rounds.restart()
        if not passes.sizing.reject():
            return Retry.IMPOSSIBLE
        self._sums.restart()
        passes.clock.take()  # what was in vain is not the time that the round takes
        passes.begin(passes.part)
        return Retry.STEP

    def part_done(self, collective: Collective) -> bool:
        """A chunk is computed; a round is full at its limit, or when nobody has to wait for it."""
        passes, rounds = self.passes, self._rounds
        rounds.chunk_done(passes.part.num_samples)
        if is_accelerator(passes.device):
            self._keep_pace()
        passes.hold(rounds.num_samples, is_last=False)
        return rounds.is_full(lambda: self._may_submit(collective))

    def _keep_pace(self) -> None:
        """Let the device have one chunk ahead, no more: what is counted has to be computed."""
        before, self._chunk_end = self._chunk_end, DeviceEvent(self.passes.device)
        self._chunk_end.record()
        if before is not None:
            with self.passes.clock.phase("backward"):
                before.wait()

    def _may_submit(self, collective: Collective) -> bool:
        flights = self._sums.in_flight
        return len(flights) < max(1, self._staleness.now) or flights[0].is_done(collective)

    def submit(self, collective: Collective, urgency: ExchangeTrigger) -> int:
        """Submit what this worker has added to the round."""
        if self._aside:
            num_samples = self._submit_again(collective)
        else:
            num_samples = self._submit_begun(collective, urgency)
        self._rounds.submitted()
        self._is_open = False
        return num_samples

    def _submit_begun(self, collective: Collective, urgency: ExchangeTrigger) -> int:
        passes, num_samples = self.passes, self._rounds.num_samples
        self._sums.prepare()
        passes.hold(num_samples)
        passes.sizing.done()
        is_urgent = urgency(num_samples, passes.clock.is_immediate)
        part, counts = self._part, self._counts(collective, num_samples)
        self._sums.submit(collective, part, is_urgent=is_urgent, counts=counts)
        return num_samples

    def _submit_again(self, collective: Collective) -> int:
        own = self._aside[0]
        num_samples = own.part.num_samples
        own = own._replace(part=self.passes.part._replace(num_samples=num_samples))
        self._sums.submit_again(collective, own, counts=self._counts(collective, num_samples))
        self._aside.popleft()
        return num_samples

    def _counts(self, collective: Collective, num_samples: int) -> tuple[float, ...]:
        chunks = [0.0] * collective.size
        chunks[collective.rank] = float(self._rounds.num_to_submit)
        return (float(num_samples), *chunks)

    @property
    def _part(self) -> Slice:
        """What this worker has computed of the round begun."""
        return self.passes.part._replace(num_samples=self._rounds.num_samples, batch=None)

    def apply_oldest(self, collective: Collective) -> AppliedStep | None:
        """Wait for the oldest round under way, and apply it; an empty one changes nothing."""
        totals = self._sums.wait(collective)
        if self._is_closing:
            self._begin_all(collective)
        num_samples, *chunks = totals.counts
        size_ratio = num_samples / self.in_flight[0].own.part.global_samples
        lr_factor = size_ratio**self._exponent
        applied = self._sums.apply(collective, totals, num_samples=num_samples, lr_factor=lr_factor)
        self._rounds.reduced([round(count) for count in chunks])
        return applied

    def close(self) -> None:
        """See `KeepingStep`."""
        self._is_closing = True
        if self._is_open and self._rounds.num_chunks:
            self._aside.append(self._sums.close(self._part))
            self._rounds.close()
        self._is_open = False
        self._sums.leave()

    def _begin_all(self, collective: Collective) -> None:
        """See to it that no round begins after the update that it did not have to wait for.

        The script may change its model after an update, and all workers compute a round before it.
        """
        while len(self.in_flight) + len(self._aside) <= self._staleness.bound:
            part = self.passes.part._replace(num_samples=0, batch=None)
            self._sums.begin(collective, part)
            self._sums.prepare()
            self._aside.append(self._sums.close(part))
            self._rounds.close()

    def set_aside(self) -> None:
        """See `KeepingStep`."""
        self._is_closing = False
        if not self._sums.keeps_parts:
            self.abort()
            return
        self._aside.extendleft(flight.own for flight in reversed(self.in_flight))
        self._rounds.set_aside()
        self.in_flight.clear()
        self._kept = self._rounds.kept

    @property
    def kept(self) -> KeptParts | None:
        """See `KeepingStep`; None, too, where another state than that of the parts was copied."""
        return self._kept if self._kept == self._rounds.kept else None

    def go_on(self, ranks: Sequence[int]) -> None:
        """See `KeepingStep`."""
        self._kept = None
        if ranks:
            self._rounds.go_on(ranks)
        else:
            self._drop()

    def _drop(self) -> None:
        self._aside.clear()
        self._rounds.drop()

    def restore(self) -> None:
        """The same, and the round that was begun is dropped."""
        self._is_open = False
        self._drop()
        self._rounds.restart()
        self._sums.restore()

    def abort(self) -> None:
        """Drop all rounds that were not applied."""
        self.restore()
        self._sums.abort()

    def release(self) -> None:
        """See `TrainingStep`."""
        self._sums.release()
        self._rounds.release()


def _lr_exponent(rule: str, optimizer: torch.optim.Optimizer) -> float:
    """How the learning rate grows with the size of a round.

    Linear for plain gradients (Goyal et al., Accurate, Large Minibatch SGD, 2017), as the square
    root for those that are divided by their own size (Malladi et al., On the SDEs and Scaling Rules
    for Adaptive Gradient Algorithms, NeurIPS 2022).
    """
    if rule == "auto":
        rule = "sqrt" if "betas" in optimizer.defaults else "linear"
    return {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[rule]
