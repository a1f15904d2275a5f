"""Hugging Face's Trainer: its arguments, callbacks, logs and checkpoints around our steps.

transformers believes in one process on one device. Whatever follows from there being several is
here: each worker's part of a batch, the reduction, who leads, and what a worker that joins is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset
from transformers.optimization import GreedyLR
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import TrainOutput
from transformers.utils import logging as transformers_logging

from hetero_hvd.data.streams.stream_shards import StreamShards
from hetero_hvd.errors import UserError
from hetero_hvd.integrations.huggingface.arguments import check_arguments, order_of_shards
from hetero_hvd.integrations.huggingface.evaluation import TrainerWithParts, num_samples_of
from hetero_hvd.integrations.huggingface.loss_scale import ScalingTrainer
from hetero_hvd.integrations.huggingface.progress_bar import LateProgressBar
from hetero_hvd.integrations.huggingface.resuming import ResumingTrainer
from hetero_hvd.integrations.huggingface.state import Logs, TrainingProgress
from hetero_hvd.integrations.packages import HUGGING_FACE
from hetero_hvd.integrations.steps import ShardOptimizer, Steps, check_job, checked_state, numbers
from hetero_hvd.worker.micro_batch.split import parts_of
from hetero_hvd.worker.recovery.replica import loaded, packed
from hetero_hvd.worker.session.launch_settings import is_alone
from hetero_hvd.worker.session.worker_context import device, init

STEPPED_BY_METRIC = (ReduceLROnPlateau, GreedyLR)
"""Schedules that an evaluation advances, not a step."""

IGNORED_LABEL = -100
"""Label of what no loss counts, in all of transformers."""


class HuggingFaceTrainer(ScalingTrainer, ResumingTrainer, TrainerWithParts):
    """`transformers.Trainer` on all workers of the job: the same arguments, methods and callbacks.

    `per_device_train_batch_size` is that of all workers, of which each gets a part that fits its
    speed. Losses and metrics are those of one process. See docs/guide/huggingface.md.

    Args:
        model: As for `transformers.Trainer`.
        args: As there; what cannot be honoured is refused by name.
        more: The other arguments of `transformers.Trainer`, by place or by name.
        shard_optimizer: As for `hetero_hvd.Trainer`; what is saved must be the model alone then.

    Raises:
        UserError: An argument cannot be honoured; says why and what to do instead.
    """

    def __init__(
        self,
        model: Any = None,  # noqa: ANN401 - as in transformers
        args: transformers.TrainingArguments | None = None,
        *more: Any,  # noqa: ANN401 - as there
        shard_optimizer: ShardOptimizer = False,
        **named: Any,  # noqa: ANN401 - as there
    ) -> None:
        args = args or transformers.TrainingArguments("tmp_trainer")
        HUGGING_FACE.warn()
        check_arguments(args, shard_optimizer=shard_optimizer)
        check_job("transformers")
        self._shard_optimizer = shard_optimizer
        self._has_steps = False
        self._is_preparing = True
        self._leads = self._is_alone = is_alone()
        args.auto_find_batch_size = False  # it would begin anew on this worker alone
        _use_own_device(args)
        _take_role(args, leads=self._leads)
        super().__init__(model, args, *more, **named)
        self._is_preparing = False
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(LateProgressBar)
        self._has_begun_training = self._has_begun_step = self._must_complete_save = False
        self._grad_norm: torch.Tensor | None = None
        self._learning_rate: float | None = None
        self._ignored_keys: list[str] | None = None
        self._saved_step = self._batches_per_epoch = 0
        self._scale = self._start_seconds = 0.0

    # Who leads.

    def is_world_process_zero(self) -> bool:
        """Whether this worker does what is to be done once.

        The answer is known once the worker is admitted to the job: the others wait from then on, so
        what transformers asks while it gets ready is answered with what was the case before.
        """
        if self._is_preparing or self._is_alone:
            return self._leads
        return self._steps.is_leader if self._has_steps else init().collective.rank == 0

    def is_local_process_zero(self) -> bool:
        """The same: what is told once a node elsewhere is told once a job here."""
        return self.is_world_process_zero()

    def _find_role(self) -> None:
        """Whether this worker leads may change with each membership."""
        leads = self.is_world_process_zero()
        self.state.is_world_process_zero = self.state.is_local_process_zero = leads
        if leads == self._leads:
            return
        self._leads = self._must_complete_save = leads
        _take_role(self.args, leads=leads)
        transformers_logging.set_verbosity(self.args.get_process_log_level())

    # The loop, in place of that of transformers.

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:  # noqa: ANN401 - as there
        """As there; shards of a stream are read on and on."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if isinstance(dataset, StreamShards):
            return order_of_shards(dataset, self.args)
        if isinstance(dataset, Sized) and not len(dataset):
            raise UserError("train_dataset has no samples: its len() is 0")
        return super()._get_train_sampler(train_dataset)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,  # noqa: ARG002 - what does not fit is divided further
        args: transformers.TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: object = None,  # noqa: ARG002 - a search is refused
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, from a checkpoint if one is given."""
        args = args or self.args
        self._is_preparing = True
        self.accelerator.free_memory()
        loader = self.get_train_dataloader()
        self._check_sets(loader.dataset)
        values = self.set_initial_training_values(args, loader)
        num_epochs, steps_per_epoch, _, num_samples, _, _, max_steps = values
        accumulated = args.gradient_accumulation_steps
        if args.dataloader_drop_last and accumulated > 1 and len(loader) % accumulated:
            # An incomplete step is left out, which transformers counts.
            steps_per_epoch = max(1, len(loader) // accumulated)
            if args.max_steps <= 0:
                max_steps = math.ceil(args.num_train_epochs * steps_per_epoch)
            num_epochs = math.ceil(max_steps / steps_per_epoch)
        checkpoint = resume_from_checkpoint
        self._init_training_state(max_steps, steps_per_epoch, num_epochs, checkpoint, None)
        self._prepare_for_training(max_steps or 0, loader, checkpoint)
        self._begin_totals()
        self._ignored_keys = ignore_keys_for_eval
        self._batches_per_epoch = self._count_batches(loader)
        self._steps = self._make_steps(loader)
        self._has_steps = True
        if checkpoint is not None:
            done = self.state.global_step
            self._steps.begin_at(*divmod(done, steps_per_epoch), done)
            self._load_rng_state(checkpoint)
        self._train(num_epochs)
        finalize: Any = self._finalize_training
        output: TrainOutput = finalize(None, num_samples, self._start_seconds)
        return output

    def _prepare_for_training(
        self,
        max_steps: int,
        train_dataloader: DataLoader[Any],
        resume_from_checkpoint: str | None,
    ) -> tuple[torch.nn.Module, DataLoader[Any]]:
        """Optimizer, schedule, and a model that casts and compiles; nothing wraps the optimizer."""
        if self._created_lr_scheduler:
            self.lr_scheduler = None
            self._created_lr_scheduler = False
        self.create_optimizer()
        self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)
        self.create_scheduler(num_training_steps=max_steps)
        with checked_state(self.optimizer, f"resume_from_checkpoint: {resume_from_checkpoint}"):
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        self._load_scaler(resume_from_checkpoint)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model_wrapped, train_dataloader

    def _begin_totals(self) -> None:
        """What transformers adds up between two logs, from here on."""
        self._start_seconds = time.time()
        self._initial_num_input_tokens_seen = self.state.num_input_tokens_seen
        self._initial_global_step = self.state.global_step
        self._globalstep_last_logged = self.state.global_step
        self._saved_step = self.state.global_step
        self._tr_loss = torch.zeros((), device=self.args.device)
        self._total_loss_scalar = 0.0
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps

    def _make_steps(self, loader: DataLoader[Any]) -> Steps:
        args = self.args
        return Steps(
            self.model,
            self.optimizer,
            loader,
            extra_state={
                "lr_scheduler": self.lr_scheduler,
                "huggingface": TrainingProgress(self),
                "huggingface_logs": Logs(self),
            },
            after_step=self._step_applied,
            seed=args.seed if args.data_seed is None else args.data_seed,
            scaler=self._scaler,
            clip=self._clip,
            accumulation_steps=args.gradient_accumulation_steps,
            shard_optimizer=self._shard_optimizer,
        )

    def _train(self, num_epochs: int) -> None:
        steps = self._steps
        self._has_begun_training = self._has_begun_step = False
        for _ in steps.epochs(num_epochs):
            self._begin_training()
            self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
            for batch in steps.batches(until=self._is_to_stop):
                self._begin_step()
                steps.step(self._loss, batch)
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._log_save_evaluate()
            is_last = steps.epoch + 1 >= num_epochs and steps.has_all_steps
            if self.control.should_training_stop and not is_last:
                break
        self._begin_training()

    def _begin_training(self) -> None:
        """Once: this worker is admitted, and holds the state of the others."""
        if self._has_begun_training:
            return
        self._has_begun_training = True
        self._is_preparing = False
        self._find_role()
        self._must_complete_save = False
        self._scale = self._loss_scale
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        if self.args.eval_on_start and not self.state.global_step:
            self._evaluate(None, self._ignored_keys, skip_scheduler=True)

    def _is_to_stop(self) -> bool:
        return self.control.should_epoch_stop or self.control.should_training_stop

    # A step.

    def _begin_step(self) -> None:
        """A step begins, or is taken again; where this worker has no part of it, it is applied."""
        self._find_role()
        if not self._has_begun_step:
            self._has_begun_step = True
            self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)

    def _loss(self, inputs: dict[str, Any]) -> Any:  # noqa: ANN401 - see `worker.micro_batch.split`
        """The mean loss over a micro-batch, its weight, and how many input tokens it has."""
        self._find_role()
        if self._must_complete_save:
            self._complete_save()
        self.model_wrapped.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        weight = count_labels(inputs, are_shifted=self._loss_shifts_labels)
        num_items = self._get_num_items_in_batch([inputs], self.args.device)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(self.model_wrapped, inputs, num_items_in_batch=num_items)
        given = loss if weight is None else (loss, weight)
        parts = parts_of(given, num_samples=self._steps.num_samples)
        return parts._replace(counted=self._count_tokens(inputs))

    def _count_tokens(self, inputs: dict[str, Any]) -> float:
        """As transformers counts them, which adds them to its state: here the step does that."""
        seen = self.state.num_input_tokens_seen
        self._track_num_input_tokens(inputs)  # type: ignore[no-untyped-call]
        found, self.state.num_input_tokens_seen = self.state.num_input_tokens_seen - seen, seen
        return float(found)

    def _clip(self, parameters: list[torch.nn.Parameter]) -> None:
        """The gradients are those of the whole step."""
        self._grad_norm = clip_grad_norm_(parameters, self.args.max_grad_norm or math.inf)
        self.control = self.callback_handler.on_pre_optimizer_step(
            self.args, self.state, self.control
        )

    def _step_applied(self) -> None:
        """A step is applied, on every worker: what transformers does after its optimizer's step."""
        handler = self.callback_handler
        self._begin_step()
        self._has_begun_step = False
        is_skipped = self._add_loss(self._steps.loss)
        self._add_counts(self._steps.last_batches)
        self.control = handler.on_optimizer_step(self.args, self.state, self.control)
        self._learning_rate = self._get_learning_rate()
        if not is_skipped and not isinstance(self.lr_scheduler, STEPPED_BY_METRIC):
            self.lr_scheduler.step()
        self.state.global_step += 1
        self.state.epoch = self._steps.epoch + self._part_of_epoch()
        self.control = handler.on_step_end(self.args, self.state, self.control)
        self._log_save_evaluate()

    def _add_loss(self, loss: float) -> bool:
        """Account for a step's loss; gives whether its numbers were no good: it changed nothing."""
        before = self._scale
        self._scale = self._loss_scale
        is_finite = math.isfinite(loss)
        if not is_finite and self.args.logging_nan_inf_filter:  # as if it were the mean of the rest
            num_steps = self.state.global_step - self._globalstep_last_logged
            self._tr_loss += self._tr_loss / (1 + num_steps)
        else:
            self._tr_loss += loss
        return self._scale < before if self._scaler is not None else not is_finite

    def _add_counts(self, batches: list[Any]) -> None:
        """What the step's samples cost, and how many tokens they have on all workers."""
        num_samples = sum(map(num_samples_of, batches))
        for batch in batches:
            whole = self.args.train_batch_size * self.args.gradient_accumulation_steps
            self.current_flos += round(self.floating_point_ops(batch) * whole / num_samples)
        self.state.num_input_tokens_seen += round(self._steps.last_counted)

    def _part_of_epoch(self) -> float:
        done = self._steps.step_in_epoch * self.args.gradient_accumulation_steps
        return min(1.0, done / self._batches_per_epoch)

    def _count_batches(self, loader: DataLoader[Any]) -> int:
        """Those of an epoch; of a stream, whose end nobody knows, those of the training."""
        if isinstance(loader.dataset, IterableDataset):
            return self.state.max_steps * self.args.gradient_accumulation_steps
        return len(loader)

    def _log_save_evaluate(self) -> None:
        self._maybe_log_save_evaluate(
            self._tr_loss,
            self._grad_norm,
            self.model_wrapped,
            None,
            self.state.epoch,
            self._ignored_keys,
            self._start_seconds,
            learning_rate=self._learning_rate,
        )

    def running_totals(self) -> dict[str, Any]:
        """What is added up until the next log, and when it was logged and saved last."""
        return {
            "loss": float(self._tr_loss),
            "total_loss": self._total_loss_scalar,
            "logged_step": self._globalstep_last_logged,
            "saved_step": self._saved_step,
            "scale": self._scale,
        }

    def set_running_totals(self, totals: dict[str, Any]) -> None:
        """Take over another worker's."""
        self._tr_loss.fill_(totals["loss"])
        self._total_loss_scalar = totals["total_loss"]
        self._globalstep_last_logged = totals["logged_step"]
        self._saved_step = totals["saved_step"]
        self._scale = totals.get("scale", self._scale)  # earlier versions did not keep it

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in transformers; numbers go into the job's record as well."""
        super().log(logs, start_time)
        if self._has_steps:
            self._steps.log(numbers(logs))

    # Checkpoints: the leader writes, all know.

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:  # noqa: ANN401
        """All workers know what is saved; the leader writes it."""
        state = self.state
        best = state.best_global_step
        if best and best in (state.global_step, self._saved_step):
            state.best_model_checkpoint = str(self._folder(best))
        self._saved_step = state.global_step
        if self._leads:
            super()._save_checkpoint(model, trial)

    def _complete_save(self) -> None:
        """Write the last checkpoint again, if the leader before was lost while it wrote."""
        self._must_complete_save = False
        step = self.state.global_step
        if step and self._saved_step == step and self._why_not_whole(self._folder(step)):
            super()._save_checkpoint(self.model_wrapped, None)

    def _folder(self, step: int) -> Path:
        return Path(self.args.output_dir or "", f"checkpoint-{step}")

    def _load_best_model(self) -> None:
        """Load it from its folder; where that is not seen, from the leader if it sees it."""
        is_seen = Path(self.state.best_model_checkpoint or "").is_dir()
        found = self._steps.gather(b"1" if is_seen else b"", "best model seen")
        if is_seen:
            super()._load_best_model()
        if all(found) or not found[0]:
            return
        payload = packed(self.model.state_dict()) if self._leads else b""
        given = self._steps.gather(payload, "best model")[0]
        if given and not is_seen:
            self.model.load_state_dict(loaded(given))

    def hyperparameter_search(self, *_: object, **__: object) -> Any:  # noqa: ANN401 - never returns
        """Refused.

        Raises:
            UserError: Always; says what to do.
        """
        raise UserError(
            "hyperparameter_search: its trials would differ from worker to worker: start one job "
            "for each trial"
        )


def count_labels(inputs: dict[str, Any], *, are_shifted: bool) -> torch.Tensor | None:
    """How many labels a mean loss is over; None: it is over the samples.

    Args:
        inputs: Of the model.
        are_shifted: Whether the model's loss leaves out each sequence's first label.
    """
    labels = inputs.get("shift_labels")
    if labels is not None:
        are_shifted = False
    else:
        labels = inputs.get("labels")
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return None
    return (labels[..., 1:] if are_shifted else labels).ne(IGNORED_LABEL).sum()


def _use_own_device(args: transformers.TrainingArguments) -> None:
    """Each worker has one device, which may not be the first that its process sees."""
    vars(args)["_setup_devices"] = device()
    args._n_gpu = min(1, args.n_gpu)  # noqa: SLF001 - transformers has no other way
    args.distributed_state.device = device()


def _take_role(args: transformers.TrainingArguments, *, leads: bool) -> None:
    """Tell transformers and accelerate which process this is: they ask for number 0 alone."""
    number = 0 if leads else 1
    args.distributed_state.process_index = number
    args.distributed_state.local_process_index = number
