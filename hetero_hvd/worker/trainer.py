"""The training loop of a user's script: this worker's part of each step, exact and elastic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from msgspec.structs import replace
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from hetero_hvd.errors import UserError
from hetero_hvd.worker import arguments
from hetero_hvd.worker.calibration import Calibration
from hetero_hvd.worker.evaluation import Metrics
from hetero_hvd.worker.micro_batch.split import Loss, is_unpacked
from hetero_hvd.worker.out_of_memory import contribute
from hetero_hvd.worker.session.turns import check_turn, turn_of
from hetero_hvd.worker.several_models.batch_steps import AddedModel
from hetero_hvd.worker.step.other_optimizers import told_of_other_steps
from hetero_hvd.worker.step.schedule import Schedule
from hetero_hvd.worker.synchronous.synchronous_step import SynchronousStep
from hetero_hvd.worker.training_loop import TrainingLoop


class Trainer(TrainingLoop):
    """Trains one model with the workers of a job, whatever their number, speed and fate.

    Example::

        trainer = hetero_hvd.Trainer(model, optimizer, loader)
        for epoch in trainer.epochs(10):
            for images, labels in trainer.batches():
                trainer.step(lambda x, y: cross_entropy(model(x), y), images, labels)

    The loader's `batch_size` is the global batch size: it keeps its meaning whatever the cluster,
    so the learning rate needs no change. When workers are lost or join, the loop simply goes on: a
    step is applied by all or by none, and what the script keeps in local variables stays.

    Args:
        model: Moved to `hetero_hvd.device()` here.
        optimizer: Any torch optimizer that needs no closure.
        loader: The script's loader; see `ShareLoader`.
        scheduler: Advanced by the trainer, so that every worker's stands at the same place.
        scheduler_interval: `epoch` (after each) or `step` (after each optimizer step).
        extra_state: Name to whatever else must be equal on all workers and has a state dict.
        after_step: Called without arguments on every worker each time an optimizer step is applied,
            also where this worker had no part of it: the place for what changes `extra_state`, such
            as a moving average of the model. See docs/guide/trainer.md.
        seed: Seed of the data order.
        options: How a step is taken, such as scaler, clip, micro_batch_size, accumulation_steps,
            mode and grain; each is described at `worker.options.StepOptions`.

    Raises:
        UserError: A combination that cannot work; says which and what to do.
    """

    @property
    def is_leader(self) -> bool:
        """Whether this worker should do what is to be done once, such as printing; may change."""
        return self._state.is_leader

    @property
    def world_size(self) -> int:
        """Workers of the job at this moment."""
        return self._state.num_workers

    @property
    def num_workers(self) -> int:
        """The same as `world_size`; reads like the number of a DataLoader's processes."""
        return self.world_size

    @property
    def applied_steps(self) -> int:
        """Optimizer steps applied since the start of training, by all workers alike."""
        return self._state.position.applied_steps + self._models.is_lead_applied

    @property
    def loss(self) -> float:
        """Mean loss over the last applied step's global batch, the same number on every worker.

        NaN before the first step, and after one that was skipped for its numbers.
        """
        return self._state.position.loss

    def add_model(
        self,
        name: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        **options: Any,  # noqa: ANN401 - see `model_steps.OWN_OPTIONS`
    ) -> AddedModel:
        """Train one more model in the same loop, by steps of its own on the same batches.

        Example::

            critic = trainer.add_model("critic", critic_model, critic_optimizer)
            for images in trainer.batches():
                critic.step(critic_loss, images)
                trainer.step(generator_loss, images)

        Args:
            name: Of its state in checkpoints: letters, digits and _.
            model: Shares no parameters with the others; moved to `hetero_hvd.device()` here.
            optimizer: Of its parameters.
            scheduler: As for the trainer.
            scheduler_interval: As for the trainer; `step` counts this model's steps.
            options: scaler, clip, micro_batch_size, bucket_bytes, compression, as for the trainer.

        Raises:
            UserError: A combination that cannot work; says which and what to do.
        """
        self._state.check_not_begun(f"trainer.add_model({name!r})")
        arguments.check_scheduler(scheduler, scheduler_interval, optimizer)
        schedule = Schedule(scheduler, scheduler_interval)
        added, parts = self._models.add(name, model, optimizer, schedule, options)
        for key, part in parts.items():
            self._state.replica.add(key, part)
            self._fingerprints.add(key, part)
        self._evaluations.add(model)
        self._state.work = replace(self._state.work, can_calibrate=False)
        return added

    def fingerprint(self) -> str:
        """A digest of all training state; equal in two reproducible runs as long as they agree."""
        return self._fingerprints.take()

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epochs from where training stands; a late joiner starts in the current one.

        The first comes once this worker is admitted and its model is equal to the others'. The
        scheduler advances when the next one is asked for.

        Args:
            num_epochs: Of the whole training, those before a resume included; a whole number >= 0.

        Raises:
            UserError: Another trainer is in the middle of its epochs, or the number is none.
        """
        arguments.check_count(num_epochs, "trainer.epochs")
        with (
            turn_of(self, self._models.release),
            told_of_other_steps(lambda: self._state.num_workers),
        ):
            yield from self._epochs(num_epochs)

    def batches(self, until: Callable[[], bool] | None = None) -> Iterator[Any]:
        """This worker's part of each global batch of this epoch, as the loader collates it.

        Steps without a part for this worker are taken without showing up here. When the membership
        changed before a step was applied, the step's new part is handed out. In wait-free rounds
        each part is a chunk.

        Args:
            until: Asked on each worker between two steps: whether the epoch ends; alike on all.

        Raises:
            UserError: `step` (or `apply`) was not called for the batch before.
        """
        check_turn(self)
        if self._is_through:
            raise UserError("trainer.batches() belongs into the loop over trainer.epochs()")
        self._has_batches = True
        self._parts_of = None
        while True:
            if until is not None and not self._has_all_steps and until():
                self._leave_epoch(is_through=not self._mode.shares_vary)
                return
            membership = self._state.membership
            part = self._next_part()
            if part is None:
                if self._drain():
                    self._leave_epoch(is_through=True)
                    return
                continue
            yield from self._models.bodies(part) if self._models.is_used else self._bodies(part)
            if self._slice is not None and membership is self._state.membership:
                raise UserError("trainer.step (or apply) was not called for the last batch")

    def step(self, loss_function: Callable[..., Loss], *batch: Any) -> float:  # noqa: ANN401
        """One optimizer step on the global batch of which `batch` is this worker's part.

        Forward and backward run in micro-batches, in smaller ones where the memory does not hold
        them; the reduction overlaps with the last backward. When the membership changes under way,
        the step is taken again with this worker's new part (if `batch` is what `batches` handed
        out, whole or unpacked; else `batches` hands out that part).

        Args:
            loss_function: Called with each micro-batch; gives the mean loss over its samples, or
                (mean loss, weight) where the mean is over something else, such as unmasked tokens.
            batch: What `batches` handed out.

        Returns:
            The mean loss over the global batch, the same number on every worker.
        """
        check_turn(self)
        arguments.check_function(loss_function, "trainer.step(loss_function, *batch)")
        if self._models.is_used:
            return self._models.take(self._models.lead, loss_function, batch)
        self._after_step.refuse("trainer.step")
        self._own_loop.check_begun(self._slice)
        self._own_loop.refuse("trainer.step")
        position, mode = self._state.position, self._mode
        step = position.applied_steps
        unpacked = is_unpacked(batch, self._slice and self._slice.batch)
        while True:
            if not self._calibrates(loss_function, batch, can_retake=unpacked is not None):
                if not contribute(self._step, self._state, loss_function, batch):
                    self._slice = None
                    self._schedule.leave()
                    return position.loss
                is_taken = self._apply() or position.applied_steps > step
                if is_taken or mode.staleness.now or mode.shares_vary:
                    return position.loss
            if unpacked is None:
                return position.loss
            again = self._result.again
            part = self._slice if again else self._next_part()
            if part is None:  # another worker has not left the epoch before: `batches` goes on
                return position.loss
            self._begin(part, again=again)
            batch = tuple(part.batch or ()) if unpacked else (part.batch,)

    def _calibrates(
        self, loss_function: Callable[..., Loss], batch: Sequence[Any], *, can_retake: bool
    ) -> bool:
        """Measure this worker by the part that it has, if the plan asks for it."""
        is_asked = self._state.membership.plan.calibration_ratio > 0
        if not is_asked or self._slice is None or not isinstance(self._step, SynchronousStep):
            return False
        calibration = Calibration(
            self._step, self._slice, loss_function, batch, undivided=self._state.work.undivided
        )
        return self._calibrated(calibration.measure, can_retake=can_retake)

    def evaluate(
        self, metrics: Callable[..., Metrics], loader: DataLoader[Any]
    ) -> dict[str, float]:
        """Exact means over a whole set, each worker's part in proportion to its share in training.

        Args:
            metrics: Called with each batch, in evaluation mode and without gradients; gives name to
                mean over its samples, or (that, weight) where all are over something else; a mean
                may also have a weight of its own, as (mean, weight). The names are the same for
                each batch.
            loader: Its `batch_size` bounds each batch; each sample is used exactly once.

        Returns:
            Name to weighted mean, the same numbers on every worker.
        """
        arguments.check_function(metrics, "trainer.evaluate(metrics, loader)")
        arguments.check_loader(loader, "the loader to evaluate", is_alone=self._is_alone)
        return self._find(self._evaluations.means(metrics, loader))

    def log(self, values: Mapping[str, object] = MappingProxyType({}), /, **more: object) -> None:
        """Record numbers by step; one worker's count: see docs/guide/trainer.md.

        Args:
            values: Name to a number, or to a tensor or array of one; NaN is a number, too.
            more: The same by keyword, as in `trainer.log(grad_norm=norm)`.

        Raises:
            UserError: A name or a value cannot be recorded; says which, and what can.
        """
        self._values.log({**values, **more})

    def micro_batches(self, *batch: Any) -> Iterator[Any]:  # noqa: ANN401
        """Lower level: the batch in pieces of at most `micro_batch_size` samples, on the device."""
        self._models.refuse("trainer.micro_batches")
        yield from self._own_loop.each(self._step.micro_batches(batch))

    def backward(self, loss: Loss) -> None:
        """Lower level: backward of one micro-batch's loss; once for each of `micro_batches`."""
        self._own_loop.backward()
        self._step.backward(loss)

    def apply(self) -> bool:
        """Lower level: reduce the gradients over all workers and apply them.

        Returns:
            Whether the step was taken. If not, the membership has changed: `batches` hands out this
            worker's new part.
        """
        self._after_step.refuse("trainer.apply")
        self._own_loop.check_begun(self._slice)
        self._own_loop.apply()
        return self._apply()
