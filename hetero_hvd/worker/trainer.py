"""The training loop of a user's script: this worker's part of each step, exact and elastic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.errors import UserError
from hetero_hvd.messages import StalenessEnded
from hetero_hvd.worker import arguments
from hetero_hvd.worker.after_step import AfterStep
from hetero_hvd.worker.benchmark.model_benchmark import open_state
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.data.samplers import Sampling
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.evaluation import Evaluations, Metrics
from hetero_hvd.worker.micro_batch.split import Loss, is_unpacked
from hetero_hvd.worker.options import TrainerOptions, step_options
from hetero_hvd.worker.out_of_memory import contribute
from hetero_hvd.worker.own_loop import OwnLoop
from hetero_hvd.worker.recovery.membership import WorkerMembership
from hetero_hvd.worker.recovery.replica import Trainable, all_parts
from hetero_hvd.worker.recovery.workload import describe_workload
from hetero_hvd.worker.reproducible.fingerprints import Fingerprints
from hetero_hvd.worker.session.farewell import refuse_in_one_line
from hetero_hvd.worker.session.launch_settings import read_launch_settings
from hetero_hvd.worker.session.turns import check_turn, turn_of
from hetero_hvd.worker.session.worker_context import device
from hetero_hvd.worker.step.emulation import Emulation
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.schedule import Schedule
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.step.training_step import StepResult
from hetero_hvd.worker.training_modes import open_mode

refuse_in_one_line()  # from here on, as a script may give anything


class Trainer:
    """Trains one model with the workers of a job, whatever their number, speed and fate.

    Example:
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

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        *,
        scheduler: LRScheduler | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        extra_state: Mapping[str, Stateful] | None = None,
        after_step: Callable[[], object] | None = None,
        seed: int = 0,
        **options: Unpack[TrainerOptions],
    ) -> None:
        arguments.check_parts(model, optimizer, loader, after_step)
        arguments.check_extra_state(extra_state or {})
        arguments.check_scheduler(scheduler, scheduler_interval, optimizer)
        settings = read_launch_settings()
        sampling = Sampling(loader, seed)
        own = step_options(options, settings.launch.job, loader_batch_size=sampling.batch_size)
        self._model = model.to(device())
        self._schedule = Schedule(scheduler, scheduler_interval)
        script = Script(model, optimizer, loader, sampling, own, seed, device(), settings)
        mode = self._mode = open_mode(script)
        division = {"accumulation_steps": own.accumulation_steps, "undivided": own.undivided}
        self._loader = ShareLoader(loader, sampling, seed=seed, grain=mode.grain, **division)
        self._step = mode.make_step(self._loader)
        self._pipeline = Pipeline(self._step, mode, self._applied)
        self._result = StepResult()
        parts: dict[str, Stateful | None]
        parts = {"model": model, "trainable": Trainable(model), "optimizer": optimizer}
        parts |= {"scheduler": scheduler, "scaler": own.scaler, **self._step.state}
        parts["staleness"] = mode.staleness if mode.staleness.bound else None
        state = all_parts(parts, extra_state or {})
        self._state = open_state(
            state,
            self._loader,
            self._step.passes,
            self._pipeline,
            mode=mode,
            work=describe_workload(model, own, device(), shares_vary=mode.shares_vary),
            launch=settings.launch,
        )
        state["position"] = self._state.position
        self._fingerprints = Fingerprints(state, mode.numerics, settings.launch)
        self._slice: Slice | None = None
        self._last: Slice | None = None
        self._parts: Iterator[Slice] = iter(())
        self._parts_of: WorkerMembership | None = None
        self._left_at = 0
        others = (extra_state or {}).values()
        self._evaluations = Evaluations(model, others, self._state, self._step.passes.clock, mode)
        self._after_step = AfterStep(after_step, seed)
        self._own_loop = OwnLoop()
        self._is_through = False
        self._epoch_exhausted = self._has_batches = False

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
        return self._state.position.applied_steps

    @property
    def loss(self) -> float:
        """Mean loss over the last applied step's global batch, the same number on every worker.

        NaN before the first step, and after one that was skipped for its numbers.
        """
        return self._state.position.loss

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
        with turn_of(self, self._step.release):
            yield from self._epochs(num_epochs)

    def _epochs(self, num_epochs: int) -> Iterator[int]:
        position = self._state.position
        settings = self._state.context.settings
        self._step.passes.emulate(Emulation.of(settings.node.emulate, settings.worker))
        self._is_through = False
        self._state.enter()
        self._state.check_epochs(num_epochs)
        while position.epoch < num_epochs or not self._state.finish():
            if position.epoch >= num_epochs:  # a new membership, and nobody has anything left to do
                continue
            self._epoch_exhausted = self._has_batches = False
            self._last = None
            self._left_at = 0
            if (seeds := self._mode.seeds(position.epoch, 0)) is not None:
                seeds.use(Stream.EPOCH)
            self._schedule.leave()
            try:
                yield position.epoch
            except GeneratorExit:
                self._state.loop_left()
                raise
            self._schedule.check()
            epoch = position.epoch
            if self._mode.shares_vary and self._has_batches and not self._epoch_exhausted:
                raise UserError(
                    f"{self._mode.name}: the loop over trainer.batches() was left before its end, "
                    "where workers are at different places: run it to its end"
                )
            self._drain()  # the script may have left `batches` before its end
            # After a fault another worker is in the next epoch already, or all went back to a
            # checkpoint since this one has taken its last step.
            if position.epoch != epoch or position.applied_steps < self._left_at:
                continue
            self._check_epoch()
            self._fingerprints.epoch_done(position, is_leader=self.is_leader)
            position.next_epoch()
            self._evaluations.step_begins()
            self._schedule.advance("epoch")
        self._is_through = True
        self._fingerprints.close()

    def batches(self) -> Iterator[Any]:
        """This worker's part of each global batch of this epoch, as the loader collates it.

        Steps without a part for this worker are taken without showing up here. When the membership
        changed before a step was applied, the step's new part is handed out. In wait-free rounds
        each part is a chunk.

        Raises:
            UserError: `step` (or `apply`) was not called for the batch before.
        """
        check_turn(self)
        if self._is_through:
            raise UserError("trainer.batches() belongs into the loop over trainer.epochs()")
        self._has_batches = True
        self._parts_of = None
        while True:
            membership = self._state.membership
            part = self._next_part()
            if part is None:
                if self._drain():
                    self._epoch_exhausted = True
                    self._left_at = self._state.position.applied_steps
                    self._schedule.leave()
                    return
                continue
            again = False
            while True:
                self._begin(part, again=again)
                if part.num_samples:
                    self._schedule.leave()
                    yield part.batch
                    self._schedule.check()
                else:
                    self._apply()
                again = self._result.again
                if not again:
                    break
            if self._slice is not None and membership is self._state.membership:
                raise UserError("trainer.step (or apply) was not called for the last batch")

    def _next_part(self) -> Slice | None:
        """This worker's next part of the epoch in this membership; None at its end."""
        if self._parts_of is not self._state.membership:
            self._parts_of = self._state.membership
            self._parts = self._step.parts(self._state.course)
        with self._step.passes.clock.phase("data_wait"):
            return next(self._parts, None)

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
        self._after_step.refuse("trainer.step")
        self._check_begun()
        self._own_loop.refuse("trainer.step")
        position, mode = self._state.position, self._mode
        step = position.applied_steps
        unpacked = is_unpacked(batch, self._slice and self._slice.batch)
        while True:
            if not contribute(self._step, self._state, loss_function, batch):
                self._slice = None
                self._schedule.leave()
                return position.loss
            is_taken = self._apply() or position.applied_steps > step
            if is_taken or unpacked is None or mode.staleness.now or mode.shares_vary:
                return position.loss
            again = self._result.again
            part = self._slice if again else self._next_part()
            if part is None:  # another worker has not left the epoch before: `batches` goes on
                return position.loss
            self._begin(part, again=again)
            batch = tuple(part.batch or ()) if unpacked else (part.batch,)

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
        arguments.check_loader(loader)
        self._step.check_evaluation()
        if self._after_step.is_running:
            result = self._evaluations.run_apart(metrics, loader)
        elif self._num_idle:  # who does not come does not apply what is under way, either
            is_first = self._last is not None and not self._last.first_sample
            result = self._evaluations.run_alone(metrics, loader, is_first=is_first)
        else:
            self._drain()
            result = self._evaluations.run(metrics, loader, is_epoch_done=self._epoch_exhausted)
        self._step.passes.sizing.forget_peak()
        self._fingerprints.evaluated(self._state.position, self._evaluations.number, result)
        self._schedule.leave()
        return result

    def micro_batches(self, *batch: Any) -> Iterator[Any]:  # noqa: ANN401
        """Lower level: the batch in pieces of at most `micro_batch_size` samples, on the device.

        With `backward` and `apply` this is what `step` is made of.
        """
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
        self._check_begun()
        self._own_loop.apply()
        return self._apply()

    def _apply(self) -> bool:
        self._result = self._take()
        self._schedule.leave()
        return self._result.is_taken

    def _take(self) -> StepResult:
        try:
            with self._state.last_state.applying():
                result = self._pipeline.take(self._state.context.collective, self._state.is_urgent)
        except Interrupted as fault:
            self._state.recover("fault", str(fault))
            return StepResult()
        if result.is_taken:
            self._slice = None
        if result.num_samples is not None:
            seconds = self._step.passes.clock.take()
            self._state.step_taken(result.num_samples, seconds, result.is_urgent)
        return result

    def _check_begun(self) -> None:
        if self._slice is None:
            raise UserError(
                "no step is under way: call trainer.step (or apply) once for each batch that "
                "trainer.batches() hands out"
            )

    def _applied(self, loss: float) -> None:
        self._state.position.advance(loss)
        self._evaluations.step_begins()
        self._schedule.advance("step")
        staleness = self._mode.staleness
        if staleness.applied(loss) and self.is_leader:
            worker, step = self._state.context.settings.worker, self._state.position.applied_steps
            self._state.context.tell(
                StalenessEnded(worker=worker, step=step, reason=staleness.reason)
            )
        self._after_step.call(self._state.position)
        self._fingerprints.step_done(self._state.position, is_leader=self.is_leader)

    @property
    def _num_idle(self) -> int:
        """Workers that do not run the body of the loop at this step, as they have no part of it."""
        if self._last is None or self._epoch_exhausted:
            return 0
        return self._last.num_idle

    def _check_epoch(self) -> None:
        """The script has left an epoch: all workers must have done so at the same step."""
        position = self._state.position
        total = self._loader.steps_per_epoch(position.skipped_samples)
        if total is not None and position.step_in_epoch >= total:
            return
        if not self._has_batches:
            raise UserError(
                f"epoch {position.epoch} ended without a step: take the batches from "
                "trainer.batches() and give each to trainer.step (to evaluate only, leave the loop "
                "over trainer.epochs() with break)"
            )
        if self._num_idle:
            raise UserError(
                f"the epoch was left early: {self._num_idle} of {self.num_workers} workers have no "
                "part of this step and do not run the body of the loop over trainer.batches(): "
                "leave it where all have a part"
            )

    def _drain(self) -> bool:
        """Apply all that is under way; False: the membership changed, some is lost."""
        try:
            with self._state.last_state.applying():
                self._pipeline.drain(self._state.context.collective)
        except Interrupted as fault:
            self._state.recover("fault", str(fault))
            return False
        return True

    def _begin(self, part: Slice, *, again: bool) -> None:
        self._own_loop.begin()
        self._slice = self._last = part
        self._result = StepResult()
        context, members = self._state.context, self._state.membership.workers
        self._step.passes.sizing.enter(members, context.settings.node, context.tell)
        self._step.begin(context.collective, part, again=again)
