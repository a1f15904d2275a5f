"""`trainer.fit()`: Lightning's hooks, logs, schedules and counters around our steps.

Lightning believes that each batch is a turn of its loop. Here a worker may have no part of a step,
or take it again with another part: so all that a step has as a consequence happens when it is
applied, on all workers alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers.utilities import _log_hyperparams
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.lightning.hooks import (
    changes_batches,
    changes_gradients,
    overrides,
)
from hetero_hvd.integrations.lightning.loader import empty_batch, without_samples
from hetero_hvd.integrations.lightning.metrics import ModuleMetrics
from hetero_hvd.integrations.lightning.progress import CallbacksAndLogs, LoopProgress, go_on
from hetero_hvd.integrations.lightning.results import StepResults, entries_of, put_entries
from hetero_hvd.integrations.lightning.trainer_arguments import check_saving, check_training
from hetero_hvd.integrations.steps import Steps
from hetero_hvd.worker.recovery.replica import loaded, packed

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from hetero_hvd.integrations.lightning.strategy import HeteroStrategy

WITHOUT_END = 2**31
"""Epochs of a training that something else ends."""

LOSS, WEIGHT = "loss", "loss_weight"
"""Of the dict that `training_step` may return."""


class Fit:
    """Takes the place of `run` in Lightning's loop over epochs.

    Args:
        strategy: Ours.
        trainer: Lightning's.

    Attributes:
        trainer: As above.
        results: What is logged in training.
        metrics: The metric objects of the module.
    """

    def __init__(self, strategy: HeteroStrategy, trainer: Trainer) -> None:
        self.trainer = trainer
        self._strategy = strategy
        self._loop: Any = trainer.fit_loop
        self._epoch_loop: Any = self._loop.epoch_loop
        self.results = self._epoch_loop._results = StepResults(strategy.reduce)
        self.metrics = ModuleMetrics(torch.nn.Module())
        self._has_begun = self._has_begun_step = False
        self._batch: Any = None
        self._extra: dict[str, Any] = {}
        self._saved: tuple[int, Any, bool] | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._strategy.root_device

    @property
    def _module(self) -> LightningModule:
        return self.trainer.lightning_module

    def run(self) -> None:
        """Train, from where Lightning's loops stand."""
        loop = self._loop
        loop.setup_data()
        if loop.skip:
            return
        check_training(self.trainer, self._module)
        if self._strategy.shard_optimizer:
            check_saving(self.trainer)
        self._set_up_validation()
        self._prepare()
        steps = self._steps
        num_epochs = self._num_epochs()
        for epoch in steps.epochs(num_epochs):
            self._begin_training()
            self._run_epoch(epoch)
            if loop.done and not (steps.epoch + 1 >= num_epochs and steps.has_all_steps):
                break
        self._begin_training()
        self._strategy.find_role()
        loop.on_run_end()

    # Before the first step.

    def _set_up_validation(self) -> None:
        """As Lightning does later, when others would wait, and steps be lost, for a set refused."""
        if self._epoch_loop._should_check_val_epoch() and self.trainer.val_dataloaders is None:
            self.trainer.validating = True
            self._epoch_loop.val_loop.setup_data()
            self.trainer.training = True

    def _prepare(self) -> None:
        place = self._place()
        self._has_begun = self._has_begun_step = False
        self._takes_index = is_param_in_hook_signature(
            self._module.training_step, "batch_idx", min_args=2
        )
        self._per_step = self.trainer.accumulate_grad_batches
        self.metrics = ModuleMetrics(self._module)
        self._steps = self._make_steps()
        if any(place):
            self._steps.begin_at(*place)

    def _make_steps(self) -> Steps:
        trainer = self.trainer
        (training_set,) = self._loop._combined_loader.flattened
        schedulers = {
            f"lr_scheduler_{number}": config.scheduler
            for number, config in enumerate(trainer.lr_scheduler_configs)
        }
        return Steps(
            self._module,
            trainer.optimizers[0],
            training_set.loader,
            extra_state={
                **schedulers,
                "lightning": LoopProgress(trainer, self),
                "lightning_memory": CallbacksAndLogs(trainer, self),
            },
            after_step=self._step_applied,
            seed=self._strategy.seed,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            clip=self._before_update,
            accumulation_steps=trainer.accumulate_grad_batches,
            shard_optimizer=self._strategy.shard_optimizer,
        )

    def _place(self) -> tuple[int, int, int]:
        """Epoch, step of it and applied steps, as Lightning's checkpoint has them; or the start.

        A checkpoint may have been written in a hook: what is processed counts.
        """
        epochs = self._loop.epoch_progress
        batches = self._epoch_loop.batch_progress
        steps = self._epoch_loop.automatic_optimization.optim_progress.optimizer.step
        epoch = epochs.current.processed
        is_mid_epoch = epochs.current.ready > epoch
        done = batches.current.processed if is_mid_epoch else 0
        for tracker in (batches.total, batches.current, epochs.total, epochs.current):
            tracker.completed = tracker.processed
        for progress in (epochs, batches, steps):
            settle(progress)
        self._epoch_loop._batches_that_stepped = steps.total.completed
        go_on(self._loop)
        return epoch, done // self.trainer.accumulate_grad_batches, steps.total.completed

    def _num_epochs(self) -> int:
        found = self._loop.max_epochs
        limit = WITHOUT_END if found is None or found < 0 else int(found)
        per_epoch = self.trainer.num_training_batches / self.trainer.accumulate_grad_batches
        if self.trainer.max_steps >= 0 and math.isfinite(per_epoch):
            done = self._steps.applied_steps - self._steps.step_in_epoch
            left = self.trainer.max_steps - done
            limit = min(limit, self._steps.epoch + math.ceil(left / math.ceil(per_epoch)))
        return limit

    def _begin_training(self) -> None:
        """Once: this worker is admitted, and holds the state of the others."""
        if self._has_begun:
            return
        self._has_begun = True
        self._strategy.begin(self._steps)
        if self._strategy.find_role():
            self._open_as_leader()
        self._loop.on_run_start()
        self._loop._resuming_from_checkpoint = False

    def _open_as_leader(self) -> None:
        """What Lightning has done before anybody led."""
        trainer = self.trainer
        if trainer.enable_autolog_hparams:
            _log_hyperparams(trainer)
        if trainer.progress_bar_callback is not None:
            trainer.progress_bar_callback.enable()

    # An epoch.

    def _run_epoch(self, epoch: int) -> None:
        steps, loop = self._steps, self._loop
        self._begin_epoch()
        for batch in steps.batches(until=self._is_epoch_over):
            self._begin_step(batch)
            steps.step(self._loss, batch)
        if steps.epoch != epoch:  # others have ended it, and this worker has their state
            return
        with self._strategy.together():
            if not self._epoch_loop._num_ready_batches_reached() and not self._is_epoch_over():
                self._end_stream()
            merged = self._merge_metrics()
            loop.on_advance_end()
        if not self._strategy.is_global_zero:
            self.metrics.reset(merged)

    def _merge_metrics(self) -> set[str]:
        """Let metric objects have what all workers have seen in the epoch; gives their places."""
        if not self._strategy.are_together() or not self.metrics.are_there:
            return set()
        keys = {key for key, metric in self.results.items() if not metric.is_tensor}
        own = {"logged": entries_of(self.results, keys), "metrics": self.metrics.take()}
        parts = [loaded(each) for each in self._strategy.gather(packed(own), "metrics of an epoch")]
        merged = self.metrics.put([each["metrics"] for each in parts])
        put_entries(
            self.results, [each["logged"] for each in parts], self.metrics.find, self.device
        )
        return merged

    def _begin_epoch(self) -> None:
        """Lightning counts it once, also where a worker comes in the middle of it."""
        if not self._steps.step_in_epoch:
            self._epoch_loop.reset()
        settle(self._loop.epoch_progress)
        self._loop.on_advance_start()

    def _is_epoch_over(self) -> bool:
        return bool(self._epoch_loop.done)

    def _end_stream(self) -> None:
        """A stream is over, which nobody knew at its last step."""
        self._epoch_loop.batch_progress.is_last_batch = True
        self._epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if self._epoch_loop._should_check_val_fx(self._loop._data_fetcher):
            self.trainer.validating = True
            self._epoch_loop.val_loop.run()
            self.trainer.training = True

    # A step.

    @property
    def _num_batches(self) -> int:
        """Of the step under way."""
        left = self.trainer.num_training_batches - self._epoch_loop.batch_progress.current.completed
        return int(max(1, min(self._per_step, left)))

    def _begin_step(self, batch: Any) -> None:  # noqa: ANN401 - as it was collated
        """A step begins, or is taken again; where this worker has no part of it, it is applied."""
        self._see_who_leads()
        if self._has_begun_step:
            return
        self._has_begun_step = True
        trainer, number = self.trainer, self._batch_idx
        self._batch = batch
        trainer._logger_connector.on_batch_start(batch)
        if self._call("on_train_batch_start", batch, number) == -1:
            raise UserError(
                "on_train_batch_start returned -1: workers that have no part of a step do not see "
                "its batch: end an epoch with limit_train_batches, or set trainer.should_stop"
            )
        self._call("on_before_zero_grad", self._optimizer)

    @property
    def _batch_idx(self) -> int:
        """Of the last batch of the step under way."""
        return int(self._epoch_loop.batch_progress.current.completed) + self._num_batches - 1

    @property
    def _optimizer(self) -> Any:  # noqa: ANN401 - Lightning's wrapper
        return self._strategy._lightning_optimizers[0]

    def _call(self, hook: str, *given: Any) -> Any:  # noqa: ANN401 - what the module's gives
        """The hook of the callbacks, and then of the module.

        Lightning spends 16 microseconds on two that do nothing, at five places in a step.
        """
        trainer, module = self.trainer, self._module
        if any(overrides(each, Callback, hook) for each in trainer.callbacks):  # type: ignore[attr-defined]
            call._call_callback_hooks(trainer, hook, *given)
        if overrides(module, LightningModule, hook):
            return call._call_lightning_module_hook(trainer, hook, *given)
        return None

    def _loss(self, batch: Any) -> Any:  # noqa: ANN401 - see `worker.micro_batch.split`
        """The mean loss over a micro-batch, with its weight where it is not over its samples."""
        trainer, steps = self.trainer, self._steps
        self._see_who_leads()
        self.results.begin_pass(steps.num_begun, steps.num_samples)
        with self._strategy.in_part():
            self.results.batch = batch = self._transferred(batch)
            given = (batch, self._batch_idx) if self._takes_index else (batch,)
            output = call._call_strategy_hook(trainer, "training_step", *given)
            loss, self._extra = _parts_of(output)
            self._call("on_before_backward", loss)
        self.results.end_pass()
        return (loss, self._extra[WEIGHT]) if WEIGHT in self._extra else loss

    def _transferred(self, batch: Any) -> Any:  # noqa: ANN401 - as it was collated
        """On the device, by the hooks of the module and of its data module, if they have any."""
        trainer = self.trainer
        batch = trainer.precision_plugin.convert_input(batch)
        if not changes_batches(trainer):
            return move_data_to_device(batch, self.device)
        batch = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
        return call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)

    def _before_update(self, _: list[torch.nn.Parameter]) -> None:
        """The gradients are those of the whole step."""
        self._call("on_after_backward")
        if changes_gradients(self.trainer):
            self.trainer.precision_plugin._after_closure(self._module, self._optimizer)
        else:
            self._call("on_before_optimizer_step", self._optimizer)

    def _step_applied(self) -> None:
        """A step is applied, on every worker: what Lightning does after its optimizer's step."""
        with self._strategy.together():
            self._strategy.find_role()  # a checkpoint that is missing would get other weights now
            has_part = self._has_begun_step
            if not has_part:
                self._begin_step(self._no_batch())
            self._has_begun_step = False
            self._flush_logs()
            self._count(self._num_batches)
            outputs = {LOSS: torch.full((), self._steps.loss, device=self.device)}
            outputs |= self._extra if has_part else {}
            self._end_batch(outputs)
            self._epoch_loop.on_advance_end(self._loop._data_fetcher)

    def _no_batch(self) -> Any:  # noqa: ANN401 - as it would be collated
        """For hooks where this worker has no part: without samples, but of the form of a batch."""
        if self._batch is not None:
            return without_samples(self._batch)
        (training_set,) = self._loop._combined_loader.flattened
        return empty_batch(training_set.loader)

    def _flush_logs(self) -> None:
        gather = self._strategy.gather if self._strategy.are_together() else None
        self.results.flush(gather, some_idle=self._steps.has_idle_workers)

    def _count(self, num_batches: int) -> None:
        """Lightning's counters, up to the hook at the end of the batch."""
        loop = self._epoch_loop
        progress = loop.batch_progress
        progress.increment_by(num_batches - 1)
        progress.increment_ready()
        progress.increment_started()
        is_full = progress.current.ready >= self.trainer.num_training_batches
        progress.is_last_batch = self._steps.has_all_steps or is_full
        optimizer = loop.automatic_optimization.optim_progress.optimizer
        optimizer.zero_grad.increment_ready()
        optimizer.zero_grad.increment_started()
        optimizer.zero_grad.increment_completed()
        optimizer.step.increment_ready()
        optimizer.step.increment_completed()
        progress.increment_processed()

    def _end_batch(self, outputs: dict[str, Any]) -> None:
        trainer, loop = self.trainer, self._epoch_loop
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)
        if loop._num_ready_batches_reached():
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        number = loop.batch_idx
        self._call("on_train_batch_end", outputs, self._batch, number)
        self._show_metrics()
        loop.batch_progress.increment_completed()
        trainer._logger_connector.update_train_step_metrics()

    def _show_metrics(self) -> None:
        """`on_batch_end` of Lightning's logs, which asks at five places whose results count now."""
        connector, results = self.trainer._logger_connector, self.results
        metrics = results.metrics(connector._first_loop_iter is not None)
        connector._progress_bar_metrics.update(metrics["pbar"])
        connector._callback_metrics.update(metrics["callback"])
        connector._logged_metrics.update(metrics["log"])
        results.batch = results.batch_size = None

    # Another worker.

    def forget_step(self) -> None:
        """Others have taken the step that this worker has begun: it has their state."""
        self._has_begun_step = False
        self.results.drop()

    def _see_who_leads(self) -> None:
        """A worker that leads from now on completes what the one before has begun to write."""
        if not self._strategy.find_role() or self._saved is None:
            return
        step, path, is_whole = self._saved
        if step == self.trainer.global_step and not Path(path).exists():
            self.trainer.save_checkpoint(path, weights_only=not is_whole)

    def saved(self, path: Any, *, is_whole: bool) -> None:  # noqa: ANN401 - a path of any kind
        """The leader is about to write a checkpoint.

        Args:
            path: Where.
            is_whole: Whether it has more than the weights.
        """
        self._saved = self.trainer.global_step, path, is_whole


def settle(progress: Any) -> None:  # noqa: ANN401 - Lightning's counters of one thing
    """Nothing of it is under way."""
    for tracker in (progress.total, progress.current):
        for name in ("ready", "started", "processed"):
            if hasattr(tracker, name):
                setattr(tracker, name, tracker.completed)


def _parts_of(output: Any) -> tuple[torch.Tensor, dict[str, Any]]:  # noqa: ANN401
    """The loss and the rest of what `training_step` returned.

    Raises:
        UserError: There is no loss.
    """
    extra = {}
    if isinstance(output, Mapping):
        extra = {name: value for name, value in output.items() if name != LOSS}
        output = output.get(LOSS)
    if output is None:
        raise UserError(
            "training_step returned no loss: all workers take each step together, so none of them "
            "can leave it out: return a loss, or {'loss': loss, 'loss_weight': 0.0} for a batch "
            "that is not to count"
        )
    return output, extra
