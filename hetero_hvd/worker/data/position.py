"""Where training is: all that the data order and the loops depend on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from hetero_hvd.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Order:
    """What decides which samples a step consumes; the same on all workers.

    Attributes:
        global_batch_size: Samples in a step: the loader's `batch_size` times `accumulation_steps`.
            With a batch sampler the number of its batches in a step.
        num_samples: In an epoch; -1 for a stream. With a batch sampler the number of its batches.
        is_shuffled: Whether the order is drawn anew for each epoch.
        seed: Of that order.
        drop_last: Whether a last, smaller batch is left out.
        sampler: What draws the order, with a digest; "" where seed and length alone decide.
    """

    global_batch_size: int = 0
    num_samples: int = -1
    is_shuffled: bool = False
    seed: int = 0
    drop_last: bool = False
    sampler: str = ""

    @property
    def facts(self) -> dict[str, object]:
        """What a script gives, in its words."""
        num_samples = "a stream" if self.num_samples < 0 else self.num_samples
        return {
            "global batch size": self.global_batch_size,
            "dataset length": num_samples,
            "shuffle": self.is_shuffled,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "sampler": self.sampler or "none",
        }


@dataclass(kw_only=True)
class Position:
    """The place in the training run; equal on all workers after each step.

    Attributes:
        epoch: Epoch under way, 0-based.
        step_in_epoch: Steps of it that are applied.
        applied_steps: Steps applied since the start of training.
        loss: Mean loss over the global batch of the last applied step; NaN before the first.
        chunks: Which chunks of the epoch are done, with wait-free rounds; empty without.
        evaluations: Results of the evaluations since the last applied step, in order; where the
            workers have told each other something, which entry of `gathered` it is.
        gathered: What they have told, in rank order; few have such.
        skipped_samples: Samples at the beginning of the epoch's order that were consumed in steps
            of another size; those of `step_in_epoch` come after them.
        order: Of the samples.
        steps_on_batch: Steps that are applied on the batch under way, where several models are
            trained on it: their steps follow each other, and then the position moves on.
        added_models: Steps and last loss of each further model, by name.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    applied_steps: int = 0
    loss: float = math.nan
    chunks: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    gathered: list[list[bytes]] = field(default_factory=list)
    skipped_samples: int = 0
    order: Order = field(default_factory=Order)
    steps_on_batch: int = 0
    added_models: dict[str, list[float]] = field(default_factory=dict)

    @property
    def used_samples(self) -> int:
        """Samples of the epoch that its steps have consumed; not with wait-free rounds."""
        used = self.skipped_samples + self.step_in_epoch * self.order.global_batch_size
        return used if self.order.num_samples < 0 else min(used, self.order.num_samples)

    @property
    def trained_epoch(self) -> int:
        """The newest epoch of which anything is trained; the first one before that."""
        is_begun = self.step_in_epoch or self.skipped_samples or self.chunks
        return self.epoch if is_begun else max(0, self.epoch - 1)

    def check_in_steps(self) -> None:
        """Make sure that the epoch under way was begun in steps.

        Raises:
            UserError: It was begun in chunks, and some of them between others are left.
        """
        if self.chunks:
            raise UserError("the epoch was begun with wait_free: resume with it until it has ended")

    def advance(self, loss: float) -> None:
        """One more step is applied."""
        self.step_in_epoch += 1
        self.applied_steps += 1
        self.loss = loss
        self.steps_on_batch = 0
        self.evaluations = []
        self.gathered = []

    def begin_at(self, epoch: int, step_in_epoch: int, applied_steps: int) -> None:
        """Go on from somewhere else."""
        self.epoch = epoch
        self.step_in_epoch = step_in_epoch
        self.applied_steps = applied_steps

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch += 1
        self.step_in_epoch = self.skipped_samples = 0
        self.chunks = {}
        self.evaluations = []
        self.gathered = []

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data; without what few need, which is as before there was such."""
        state = asdict(self)
        if not self.order.sampler:
            del state["order"]["sampler"]
        if not self.gathered:
            del state["gathered"]
        if not self.added_models:
            del state["steps_on_batch"], state["added_models"]
        return state

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over another worker's position, or an earlier one."""
        order = state.get("order")
        state = {"gathered": []} | state
        if "added_models" in state:  # of one that was added since there is nothing yet
            state = state | {"added_models": self.added_models | state["added_models"]}
        for name, value in state.items():
            setattr(self, name, value)
        if order is not None:
            self.order = Order(**order)

    def go_on_with(self, own: Order) -> None:
        """Go on from here with the data order of this script, which may have changed.

        Each sample of the epoch under way is still used once: steps of another size begin where the
        last one ended.

        Raises:
            UserError: The samples that are left cannot be told; says what to set back.
        """
        was, used = self.order, self.used_samples
        if self.steps_on_batch and was != own:
            raise UserError(
                "the checkpoint is from between two models' steps on one batch: the batch size, "
                "the data and their order must be as they were"
            )
        if used or self.chunks:
            self._check(was, own)
        if used and not self.chunks and was != own:
            self.skipped_samples = used
            self.step_in_epoch = 0
        self.order = own

    def _check(self, was: Order, own: Order) -> None:
        deciding = {"shuffle", "sampler"}
        if was.is_shuffled or self.chunks or own.num_samples < self.used_samples:
            deciding.add("dataset length")
        if was.is_shuffled:
            deciding.add("seed")
        before, now = was.facts, own.facts
        changed = [name for name in before if name in deciding and before[name] != now[name]]
        if changed:
            told = ", ".join(f"{name} was {before[name]} and is {now[name]}" for name in changed)
            raise UserError(
                f"{told}: epoch {self.epoch} is under way, and which of its samples are left cannot"
                " be told; set it back until that epoch has ended, or resume from its end"
            )
