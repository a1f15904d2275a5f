"""What a step of any training mode promises to those that take it, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.data.share_loader import ShareLoader, SharesAt, Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.micro_batch.split import Loss
from hetero_hvd.worker.reduction.in_flight import ExchangeTrigger
from hetero_hvd.worker.step.passes import Passes


@dataclass(frozen=True, kw_only=True)
class AppliedStep:
    """A step whose reductions are complete.

    Attributes:
        loss: Weighted mean over the global batch, the same on all workers; NaN if it or the
            gradients were not finite: then nothing was applied, on any worker.
        num_samples: Samples of all workers in the step; 0: there was nothing to apply.
        is_urgent: Whether any worker wanted an exchange of timings in it; the same on all.
        counted: Sum over all workers of what the loss functions have counted, see `LossParts`.
    """

    loss: float
    num_samples: int
    is_urgent: bool
    counted: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What has become of a step after this worker has computed its part, or one of its parts.

    Attributes:
        is_taken: Whether the part counts. If not, the step is taken again: with `again` the same
            part of it, else the one that this worker has in a new membership.
        again: Whether the sums could not be used, on any worker.
        num_samples: Samples of this worker in the step that was submitted; None: in none, as the
            step goes on with further parts.
        is_urgent: Whether any worker wanted an exchange in the step that was applied last.
    """

    is_taken: bool = False
    again: bool = False
    num_samples: int | None = None
    is_urgent: bool = False


class Retry(Enum):
    """What follows when the memory does not hold the passes of a part."""

    IMPOSSIBLE = auto()
    """There are no smaller pieces."""
    PART = auto()
    """The part is computed again, in smaller pieces."""
    STEP = auto()
    """The step begins anew: all its parts are handed out again."""
    MEMBERSHIP = auto()
    """Others were met in the middle of a pass: to submit will fail, and all take the step again."""


class Course(NamedTuple):
    """Where training stands and who takes part: what decides which samples come next.

    Attributes:
        position: The place in the training run; it moves on with each applied step.
        collective: The rendezvous.
        shares_at: The plan.
        prefetch_steps: The most steps that any member may load ahead.
    """

    position: Position
    collective: Collective
    shares_at: SharesAt
    prefetch_steps: int


class KeptParts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's parts of steps belong that were not reduced when a membership broke.

    Attributes:
        digest: Of how the samples that are left were divided, and of how far they are; parts of
            workers that tell the same digest have no sample in common.
        rank: Of the worker in that division.
    """

    digest: str
    rank: int


def kept_ranks(kept: Sequence[KeptParts | None]) -> tuple[int, ...]:
    """Who had which part, if all members of a new membership keep theirs; empty: all drop them.

    They keep them if all tell one division of the samples and are in its order. What is to become
    of the parts beside a worker that has none, as it has come just now, nobody knows.

    Args:
        kept: Of each member, in rank order; all have applied the same steps.
    """
    found = [each for each in kept if each is not None]
    ranks = tuple(each.rank for each in found)
    is_one = len(found) == len(kept) and len({each.digest for each in found}) == 1
    return ranks if is_one and list(ranks) == sorted(set(ranks)) else ()


class Submitted(Protocol):
    """A step under way."""

    def is_done(self, collective: Collective) -> bool:
        """Whether it is reduced, or has failed: to apply it would not wait."""


class TrainingStep(Protocol):
    """The steps of one model, one after the other.

    Order of calls: for each of `parts` `begin`, then `compute` and `backward` for each of its
    `micro_batches`, then `part_done`; if that says so `submit`, and later `apply_oldest`.

    Attributes:
        passes: The forward and backward passes, with the clock and the size of the micro-batches.
    """

    passes: Passes

    @property
    def in_flight(self) -> Sequence[Submitted]:
        """The steps that are submitted and not applied yet, oldest first."""

    @property
    def state(self) -> Mapping[str, Stateful]:
        """Name to what these steps keep from one to the next, beside model and optimizer."""

    def parts(self, course: Course) -> Iterator[Slice]:
        """This worker's parts of the epoch under way, as long as a membership lasts.

        Raises:
            UserError: The epoch was begun in another way, and cannot go on in this one.
        """

    def check_evaluation(self) -> None:
        """Make sure that all workers are at the same place now.

        Raises:
            UserError: They are not.
        """

    def begin(self, collective: Collective, part: Slice, *, again: bool = False) -> None:
        """Start a step, or go on with it.

        Args:
            collective: The rendezvous.
            part: What this worker computes.
            again: Whether it was computed before, and the sums could not be used.
        """

    def micro_batches(self, batch: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The part's batch in pieces on the device, in order."""

    def compute(self, loss_function: Callable[..., Loss], micro_batch: Sequence[Any]) -> Loss:
        """The loss of one of `micro_batches`, as the user's function gives it."""

    def backward(self, loss: Loss) -> None:
        """Add one micro-batch's contribution to the step."""

    def try_smaller(self) -> Retry:
        """The memory did not hold a pass: drop what it has added, and prepare for smaller ones."""

    def part_done(self, collective: Collective) -> bool:
        """The part is computed; gives whether the step is to be submitted with it."""

    def submit(self, collective: Collective, urgency: ExchangeTrigger) -> int:
        """Submit what this worker adds to the step, and return of how many samples.

        Args:
            collective: The rendezvous.
            urgency: Whether this worker wants an exchange of timings now.

        Raises:
            Interrupted: The rendezvous broke; call `abort`.
        """

    def apply_oldest(self, collective: Collective) -> AppliedStep | None:
        """Wait for the oldest step under way, and apply it.

        Returns:
            What was applied; None: its sums cannot be used on any worker: call `abort`, and all
            take the step again.

        Raises:
            Interrupted: A reduction broke; parameters and optimizer are untouched, call `abort`.
        """

    def restore(self) -> None:
        """Parameters and buffers are again as after the last update; the step begun is dropped."""

    def abort(self) -> None:
        """Drop all steps that were not applied."""

    def release(self) -> None:
        """Training is over: let go of the model."""


@runtime_checkable
class KeepingStep(TrainingStep, Protocol):
    """Steps whose parts are of use when a worker is lost: they are submitted again without it.

    Order of calls when a rendezvous broke: `close`, then `apply_oldest` for what was reduced
    before, `set_aside`; when the workers have met again `go_on`.
    """

    def close(self) -> None:
        """The step begun gets no further parts; parameters and buffers are as before it."""

    def set_aside(self) -> None:
        """Keep this worker's parts of the steps that were not reduced, or drop them."""

    @property
    def kept(self) -> KeptParts | None:
        """What the others are told of the parts set aside; None: there are none."""

    def go_on(self, ranks: Sequence[int]) -> None:
        """The workers have met again: submit the parts as the next steps, or drop them.

        Args:
            ranks: Of all members in the division of `kept`, ascending; empty: not all have kept
                theirs.
        """


def planned_parts(loader: ShareLoader, course: Course) -> Iterator[Slice]:
    """The parts that the plan gives this worker, step by step.

    Raises:
        UserError: The epoch was begun without a plan.
    """
    position = course.position
    position.check_in_steps()
    place = position.epoch, position.step_in_epoch
    return loader.slices(*place, course.shares_at, position.skipped_samples)
