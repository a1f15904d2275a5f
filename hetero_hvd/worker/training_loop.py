"""The loop of a script: its epochs, the parts of its steps, and how each step is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from hetero_hvd.core.data.grains import Stream
from hetero_hvd.messages import StalenessEnded
from hetero_hvd.refusal import refuse_in_one_line
from hetero_hvd.worker import arguments
from hetero_hvd.worker.after_step import AfterStep
from hetero_hvd.worker.benchmark.model_benchmark import open_state
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.data.samplers import Sampling
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.early_end import check_epoch, refuse_left_early, warn_if_trained
from hetero_hvd.worker.evaluation import Evaluations, PartedEvaluation
from hetero_hvd.worker.logged_values import ValueLog
from hetero_hvd.worker.options import TrainerOptions, step_options, with_tried
from hetero_hvd.worker.own_loop import OwnLoop
from hetero_hvd.worker.recovery.membership import Measure, WorkerMembership
from hetero_hvd.worker.recovery.randomness import randomness, restore_randomness
from hetero_hvd.worker.recovery.replica import Trainable, all_parts
from hetero_hvd.worker.recovery.reports import describe_workload
from hetero_hvd.worker.reproducible.fingerprints import Fingerprints
from hetero_hvd.worker.session.launch_settings import is_alone, read_launch_settings
from hetero_hvd.worker.session.worker_context import device
from hetero_hvd.worker.several_models.batch_steps import SeveralModels
from hetero_hvd.worker.several_models.model_steps import ModelSteps
from hetero_hvd.worker.step.emulation import Emulation
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.schedule import Schedule
from hetero_hvd.worker.step.training_mode import Script
from hetero_hvd.worker.step.training_step import StepResult
from hetero_hvd.worker.synchronous.synchronous_step import SynchronousStep
from hetero_hvd.worker.training_modes import open_mode

refuse_in_one_line()  # again, as another package may have put its own hook in the place of ours


class TrainingLoop:
    """What `Trainer` does behind what scripts call; see there for its arguments."""

    _before_parts: dict[str, Any]
    """The random numbers before this worker's parts were drawn, where they may be drawn again."""

    _slice: Slice | None = None
    """The part that was begun and is not applied yet."""

    _num_epochs = 0
    """Of the whole training, as the script says."""

    _last: Slice | None = None
    """The part that was handed out last in the epoch under way."""

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
        settings = read_launch_settings()
        launch = settings.launch
        self._is_alone = is_alone() and launch.benchmark is None
        arguments.check_parts(model, optimizer, loader, after_step, is_alone=self._is_alone)
        arguments.check_extra_state(extra_state or {})
        arguments.check_scheduler(scheduler, scheduler_interval, optimizer)
        self._model = model.to(device())  # first: else a sampler's seeds would be the device's
        sampling = Sampling(loader, seed)
        given = with_tried(options, launch.tried, sampling.batch_size)
        own = step_options(given, launch.job, loader_batch_size=sampling.batch_size)
        self._schedule = Schedule(scheduler, scheduler_interval)
        script = Script(model, optimizer, loader, sampling, own, seed, device(), settings)
        script = script.in_parts()
        kept = script.shards or optimizer
        mode = self._mode = open_mode(script)
        division = {"accumulation_steps": own.accumulation_steps, "undivided": own.undivided}
        self._loader = ShareLoader(loader, sampling, seed=seed, grain=mode.grain, **division)
        self._step = mode.make_step(self._loader)
        self._pipeline = Pipeline(self._step, mode, self._applied)
        self._result = StepResult()
        parts: dict[str, Stateful | None] = {"model": model, "trainable": Trainable(model)}
        parts |= {"optimizer": kept, "scheduler": scheduler, "scaler": own.scaler}
        parts |= {**self._step.state, "staleness": mode.staleness if mode.staleness.bound else None}
        state, passes = all_parts(parts, extra_state or {}), self._step.passes
        can_calibrate = isinstance(self._step, SynchronousStep)
        ways = {"shares_vary": mode.shares_vary, "can_calibrate": can_calibrate}
        work = describe_workload(model, own, device(), settings.node, grain=mode.grain, **ways)
        self._state = open_state(
            state, self._loader, passes, self._pipeline, mode=mode, work=work, launch=launch
        )
        state["position"] = self._state.position
        self._fingerprints = Fingerprints(state, mode.numerics, launch)
        self._parts: Iterator[Slice] = iter(())
        self._parts_of: WorkerMembership | None = None
        self._left_at = 0
        others = (extra_state or {}).values()
        self._evaluations = Evaluations(model, others, self._state, passes.clock, mode)
        self._models = self._several(script)
        self._values = ValueLog(
            self._state, optimizer, self._loader, lambda: self._last if self._num_idle else None
        )
        self._after_step = AfterStep(after_step, seed)
        self._own_loop = OwnLoop()
        self._is_through = self._epoch_exhausted = self._has_batches = False

    def _several(self, script: Script) -> SeveralModels:
        lead = ModelSteps("", script.model, self._step, self._pipeline, self._schedule)
        return SeveralModels(
            script,
            self._loader,
            lead,
            state=self._state,
            next_part=self._next_part,
            step_over=self._step_over,
            body_begins=self._evaluations.body_begins,
        )

    def _epochs(self, num_epochs: int) -> Iterator[int]:
        position = self._state.position
        settings = self._state.context.settings
        self._step.passes.emulate(Emulation.of(settings.node.emulate, settings.worker))
        self._is_through = False
        self._num_epochs = num_epochs
        self._state.enter()
        if self._state.is_leader:
            warn_if_trained(position.epoch, num_epochs)
        self._values.begin(num_epochs)
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
                self._values.end()
                self._state.loop_left()
                raise
            self._schedule.check()
            epoch = position.epoch
            self._models.leave()
            if self._mode.shares_vary and self._has_batches and not self._epoch_exhausted:
                refuse_left_early(self._mode.name)
            self._drain()  # the script may have left `batches` before its end
            # After a fault another worker is an epoch ahead, or all are back at a checkpoint.
            if position.epoch != epoch or position.applied_steps < self._left_at:
                continue
            if not self._has_all_steps:
                num_idle = self._num_idle if self._has_batches else None
                check_epoch(epoch, num_idle, self._state.num_workers)
            self._fingerprints.epoch_done(position, is_leader=self._state.is_leader)
            position.next_epoch()
            self._values.epoch_done()
            self._evaluations.step_begins()
            self._models.epoch_over()
        self._is_through = True
        self._values.end()
        self._fingerprints.close()

    def _leave_epoch(self, *, is_through: bool) -> None:
        self._epoch_exhausted = is_through
        self._left_at = self._state.position.applied_steps
        self._schedule.leave()

    def _next_part(self) -> Slice | None:
        """This worker's next part of the epoch in this membership; None at its end."""
        if self._state.position.epoch >= self._num_epochs:
            return None  # others had applied the last step of all when this worker came back
        if self._parts_of is not self._state.membership:
            self._parts_of = self._state.membership
            is_tried = self._parts_of.plan.calibration_ratio > 0
            self._before_parts = randomness() if is_tried else {}
            self._parts = self._step.parts(self._state.course)
        with self._step.passes.clock.phase("data_wait"):
            part = next(self._parts, None)
        self._last = part or self._last
        return part

    def _find(self, evaluation: PartedEvaluation) -> dict[str, float]:
        self._step.check_evaluation()
        if self._after_step.is_running:
            result = self._evaluations.run_apart(evaluation)
        elif self._num_idle:  # who does not come does not apply what is under way, either
            is_first = self._last is not None and not self._last.first_sample
            result = self._evaluations.run_alone(evaluation, is_first=is_first)
        else:
            self._drain()
            result = self._evaluations.run(evaluation, is_epoch_done=self._epoch_exhausted)
        self._step.passes.sizing.forget_peak()
        self._fingerprints.evaluated(self._state.position, self._evaluations.number, result)
        self._schedule.leave()
        return result

    def _apply(self) -> bool:
        self._result = self._take()
        self._schedule.leave()
        return self._result.is_taken

    def _calibrated(self, measure: Measure = lambda _: (), *, can_retake: bool) -> bool:
        """Do what the plan asks for before its first step, if it does.

        Args:
            measure: See `WorkerMembership.calibrate`.
            can_retake: See there.

        Returns:
            Whether another part of the step is handed out.
        """
        state = self._state
        if not state.membership.plan.calibration_ratio:
            return False
        try:
            with self._step.passes.clock.phase("comm_wait"):
                is_replanned = state.membership.calibrate(
                    state.context.collective,
                    state.context.planner,
                    measure,
                    applied_steps=state.position.applied_steps,
                    can_retake=can_retake,
                )
        except Interrupted as fault:
            state.recover("fault", str(fault))
            return True
        state.times.restart()  # what it took is no part of the step
        if is_replanned:
            self._pipeline.discard(state.context.collective)
            self._parts_of = self._slice = None
            restore_randomness(self._before_parts)
        return is_replanned

    def _take(self) -> StepResult:
        if self._calibrated(can_retake=self._slice is None or not self._slice.num_samples):
            return StepResult()
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

    def _applied(self, loss: float) -> None:
        if self._models.is_used:
            self._models.applied(self._models.lead, loss)
        else:
            self._step_over(loss)

    def _step_over(self, loss: float) -> None:
        self._state.position.advance(loss)
        self._evaluations.step_begins()
        self._values.step_applied()
        self._schedule.advance("step")
        staleness = self._mode.staleness
        if staleness.applied(loss) and self._state.is_leader:
            worker, step = self._state.context.settings.worker, self._state.position.applied_steps
            self._state.context.tell(
                StalenessEnded(worker=worker, step=step, reason=staleness.reason)
            )
        self._after_step.call(self._state.position)
        self._fingerprints.step_done(self._state.position, is_leader=self._state.is_leader)

    @property
    def _num_idle(self) -> int:
        """Workers that do not run the body of the loop at this step, as they have no part of it."""
        return 0 if self._last is None or self._epoch_exhausted else self._last.num_idle

    @property
    def _has_all_steps(self) -> bool:
        """Whether no step of the epoch is left; of a stream nobody knows."""
        total = self._loader.steps_per_epoch(self._state.position.skipped_samples)
        return total is not None and self._state.position.step_in_epoch >= total

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

    def _bodies(self, part: Slice) -> Iterator[Any]:
        """The batch of a step, for the loop's body; again where its sums were of no use."""
        again = False
        while True:
            self._begin(part, again=again)
            if part.num_samples:
                self._evaluations.body_begins(part)
                self._schedule.leave()
                yield part.batch
                self._schedule.check()
            else:
                self._apply()
            again = self._result.again
            if not again:
                break
