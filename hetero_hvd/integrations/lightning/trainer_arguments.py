"""Every argument of Lightning's `Trainer`: what becomes of it here.

The page docs/reference/lightning.md is made of this table, and a test walks the installed version's
signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins import MixedPrecision

from hetero_hvd.errors import ConfigError
from hetero_hvd.integrations.packages import LIGHTNING
from hetero_hvd.integrations.rules import (
    HONOURED,
    ArgumentRule,
    Given,
    honoured,
    refusals,
    refused,
    taken_over,
)
from hetero_hvd.integrations.steps import IN_PARTS

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")
"""Those whose gradients can be summed over the workers."""


RULES: dict[str, ArgumentRule] = {
    "accelerator": refused(
        "is not the kind of the worker's device: leave it out, and name the devices of a node in "
        "nodes.yaml",
        lambda kinds: kinds[0] == kinds[1],
    ),
    "strategy": taken_over(
        "`HeteroStrategy()`; its `seed` is that of the data order, its `shard_optimizer` that of "
        "`hetero_hvd.Trainer`"
    ),
    "devices": refused(
        "a worker has one device: leave it out, and name the devices of a node in nodes.yaml",
        lambda devices: devices in ("auto", 1, "1", [0]),  # [0]: `auto` where there is a GPU
    ),
    "num_nodes": refused("hetero_hvd knows the nodes, from nodes.yaml: leave it out"),
    "precision": refused(
        f"must be one of {', '.join(PRECISIONS)}: gradients of 16 bits cannot be summed over the "
        "workers without loss",
        lambda precision: precision in PRECISIONS,
    ),
    "logger": honoured("the leader logs; numbers stand in the job's record, too"),
    "callbacks": honoured(
        "called on all workers, as in any distributed run; those that change the batch or keep a "
        "second model are refused"
    ),
    "fast_dev_run": HONOURED,
    "max_epochs": HONOURED,
    "min_epochs": HONOURED,
    "max_steps": HONOURED,
    "min_steps": HONOURED,
    "max_time": honoured("by the leader's clock"),
    "limit_train_batches": honoured("a multiple of `accumulate_grad_batches`"),
    "limit_val_batches": HONOURED,
    "limit_test_batches": HONOURED,
    "limit_predict_batches": HONOURED,
    "overfit_batches": HONOURED,
    "val_check_interval": refused(
        "as a time it passes at different steps on different workers: say after how many batches, "
        "or after which part of an epoch",
        lambda seconds: seconds is None,
    ),
    "check_val_every_n_epoch": HONOURED,
    "num_sanity_val_steps": honoured("each worker takes all of them"),
    "log_every_n_steps": HONOURED,
    "enable_checkpointing": honoured("the leader writes"),
    "enable_progress_bar": honoured("of the worker that leads when training begins"),
    "enable_model_summary": honoured("without other workers; in a job nobody leads yet"),
    "accumulate_grad_batches": taken_over(
        "batches in a step; a worker computes its part of them in passes of at most the loader's "
        "`batch_size` samples, and gradients are reduced once"
    ),
    "gradient_clip_val": honoured("the norm is that of the gradients of the whole step"),
    "gradient_clip_algorithm": HONOURED,
    "deterministic": honoured(
        "of each worker by itself; for the same bits on any cluster set `mode: reproducible`"
    ),
    "benchmark": HONOURED,
    "inference_mode": HONOURED,
    "use_distributed_sampler": taken_over(
        "each worker gets a part of each batch; samplers of the script stay"
    ),
    "profiler": honoured("of each worker by itself"),
    "detect_anomaly": HONOURED,
    "barebones": HONOURED,
    "plugins": refused(
        "divides work among equal processes: leave it out (a CheckpointIO and a precision of the "
        "table are kept)",
        lambda environment: environment is None,
    ),
    "sync_batchnorm": taken_over("by `hetero_hvd.SyncBatchNorm`, which weighs unequal parts"),
    "reload_dataloaders_every_n_epochs": refused(
        "an epoch's samples must be known to a worker that joins: give the sampler a set_epoch"
    ),
    "default_root_dir": honoured("the same on all nodes; the leader writes there"),
    "enable_autolog_hparams": honoured("by the leader"),
    "model_registry": HONOURED,
}

_FOUND: dict[str, Callable[[Any], Any]] = {
    "devices": lambda trainer: _connector(trainer)._devices_flag,
    "num_nodes": lambda trainer: _connector(trainer)._num_nodes_flag,
    "precision": lambda trainer: str(trainer.precision),
    "val_check_interval": lambda trainer: trainer._val_check_time_interval,
    "plugins": lambda trainer: _connector(trainer)._cluster_environment_flag,
    "reload_dataloaders_every_n_epochs": lambda t: t.reload_dataloaders_every_n_epochs,
}
"""Where Lightning keeps what the script has given for an argument that may be refused."""

ONE_OPTIMIZER = "must give one optimizer, with groups of parameters where they differ"

REFUSED_CALLBACKS = {
    "BatchSizeFinder": "the loader's batch_size is that of all workers: choose it yourself",
    "LearningRateFinder": "its trials would end the job: find the learning rate in a run alone",
    "GradientAccumulationScheduler": "a step has the same batches in each epoch: leave it out",
    "StochasticWeightAveraging": "its second model is not copied to workers that join: average in "
    "a loop with hetero_hvd.Trainer and extra_state",
    "WeightAveraging": "its second model is not copied to workers that join: average in a loop "
    "with hetero_hvd.Trainer and extra_state",
}
"""Name of a class of callbacks, of which subclasses are refused as well, to what to do."""

SAVING_CALLBACKS = {
    ModelCheckpoint: "set save_weights_only=True; without a callback of your own, "
    "enable_checkpointing=False",
    OnExceptionCheckpoint: "leave it out",  # of this refusal it tries to save something, too
}
"""Class of callbacks that save all of a training, to what to do where that is in parts."""

REFUSED_HOOKS = {
    "optimizer_step": "a worker without a part of the step would not call it: change learning "
    "rates by a scheduler, gradients in on_before_optimizer_step",
    "backward": "gradients are reduced while backward runs: change the loss in training_step",
    "optimizer_zero_grad": "gradients are cleared by the reduction",
    "configure_sharded_model": "each worker holds the whole model",
}
"""Method of a module that may not be overridden, to what to do."""


def names() -> list[str]:
    """The arguments of the installed version, in its order."""
    return [name for name in inspect.signature(Trainer.__init__).parameters if name != "self"]


def check_trainer(trainer: Trainer, module: Any, device: torch.device) -> None:  # noqa: ANN401
    """Refuse what cannot be honoured, all of it at once.

    Args:
        trainer: Lightning's.
        module: The LightningModule.
        device: Of this worker.

    Raises:
        ConfigError: Names each with its value, why, and what to do.
    """
    defaults = inspect.signature(Trainer.__init__).parameters
    values = {name: Given(found(trainer), defaults[name].default) for name, found in _FOUND.items()}
    values["accelerator"] = Given((_accelerator(trainer), device.type), None)
    problems = refusals("Trainer", RULES, values) + _unknown(trainer)
    problems += [
        f"Trainer.callbacks: {type(callback).__name__}: {REFUSED_CALLBACKS[cls.__name__]}"
        for callback in trainer.callbacks  # type: ignore[attr-defined]  # a connector sets it
        for cls in type(callback).__mro__
        if cls.__module__.startswith("lightning.") and cls.__name__ in REFUSED_CALLBACKS
    ]
    if problems:
        raise ConfigError(problems)
    _check_module(module)


def _unknown(trainer: Trainer) -> list[str]:
    """A line for each argument that the table lacks, unless it is known to have its default."""
    found = []
    for name in [name for name in names() if name not in RULES]:
        default = inspect.signature(Trainer.__init__).parameters[name].default
        kept = [each[key] for each in _attributes(trainer) for key in _kept_as(name) if key in each]
        if kept:
            found += refusals("Trainer", RULES, {name: Given(kept[0], default)})
        else:
            found.append(
                f"Trainer.{name}: hetero_hvd does not know it, nor whether it was given: install "
                f"{LIGHTNING}, with which it was tested"
            )
    return found


def _attributes(trainer: Trainer) -> list[dict[str, Any]]:
    """Where Lightning keeps what it is given."""
    own = dict(vars(trainer))
    return [own, *(dict(vars(own[name])) for name in own if name.endswith("_connector"))]


def _kept_as(name: str) -> tuple[str, ...]:
    return name, f"_{name}", f"_{name}_flag"


def _check_module(module: Any) -> None:  # noqa: ANN401
    """Refuse a module that takes its steps in a way of its own.

    Raises:
        ConfigError: It does.
    """
    name, problems = type(module).__name__, []
    if not module.automatic_optimization:
        problems.append(
            f"{name}.automatic_optimization=False: all workers take a step together: leave it "
            "True, or write the loop with hetero_hvd.Trainer"
        )
    from_lightning = next(c for c in type(module).__mro__ if c.__name__ == "LightningModule")
    for hook, why in REFUSED_HOOKS.items():
        if getattr(type(module), hook, None) is not getattr(from_lightning, hook, None):
            problems.append(f"{name}.{hook} is overridden: {why}")
    problems += [
        f"{name}.{step}(dataloader_iter): take a batch: {step}(batch, batch_idx)"
        for step in ("training_step", "validation_step", "test_step", "predict_step")
        if "dataloader_iter" in inspect.signature(getattr(module, step)).parameters
    ]
    if problems:
        raise ConfigError(problems)


def check_training(trainer: Trainer, module: Any) -> None:  # noqa: ANN401
    """Refuse a training whose steps would not be those that are asked for.

    Raises:
        ConfigError: It is one.
    """
    problems = []
    optimizers = trainer.optimizers
    if len(optimizers) != 1 or type(optimizers[0]).__name__ == "_MockOptimizer":
        problems.append(f"{type(module).__name__}.configure_optimizers: {ONE_OPTIMIZER}")
    num_loaders = len(trainer.fit_loop._combined_loader.flattened)  # type: ignore[union-attr]
    if num_loaders != 1:
        problems.append(
            f"train_dataloaders: {num_loaders} loaders: must be one torch DataLoader; a dataset of "
            "several, such as torch.utils.data.StackDataset, reads them side by side"
        )
    problems += _unclipped(trainer) + _misaligned(trainer)
    if problems:
        raise ConfigError(problems)


def check_saving(trainer: Trainer) -> None:
    """Refuse callbacks that would save the optimizer's state, which lies in parts.

    Raises:
        ConfigError: There are some; says what to do.
    """
    problems = [
        f"Trainer.callbacks: {type(callback).__name__}: {IN_PARTS}: {what_to_do}"
        for callback in trainer.callbacks  # type: ignore[attr-defined]  # a connector sets it
        for kind, what_to_do in SAVING_CALLBACKS.items()
        if isinstance(callback, kind) and not getattr(callback, "save_weights_only", False)
    ]
    if problems:
        raise ConfigError(problems)


def _unclipped(trainer: Trainer) -> list[str]:
    """A line where Lightning would refuse to clip, in the first step and with a traceback."""
    is_mixed = isinstance(trainer.precision_plugin, MixedPrecision)
    if not (is_mixed and trainer.gradient_clip_val):
        return []
    return [
        f"Trainer.gradient_clip_val={trainer.gradient_clip_val}: Lightning clips no gradients of a "
        f"fused {type(optimizer).__name__} with precision={str(trainer.precision)!r}: leave out "
        "fused=True, or the clipping"
        for optimizer in trainer.optimizers
        if getattr(optimizer, "_step_supports_amp_scaling", False)
    ]


def _misaligned(trainer: Trainer) -> list[str]:
    """What would happen in the midst of a step."""
    per_step, per_epoch = trainer.accumulate_grad_batches, trainer.num_training_batches
    training_set = trainer.fit_loop._combined_loader.flattened[0]  # type: ignore[union-attr]
    is_limited = not hasattr(training_set, "__len__") or _length(training_set) != per_epoch
    found = []
    if per_epoch != float("inf") and is_limited and per_epoch % per_step:
        found.append(
            f"Trainer.limit_train_batches gives {per_epoch} batches: must be a multiple of "
            f"accumulate_grad_batches={per_step}, as all workers take whole steps"
        )
    interval = trainer.val_check_batch
    is_at_end = interval in (per_epoch, float("inf"), None)
    if trainer.check_val_every_n_epoch is None:
        is_at_end = is_at_end and not per_epoch % per_step
    if trainer.enable_validation and not is_at_end and interval % per_step:  # type: ignore[operator]
        found.append(
            f"Trainer.val_check_interval gives {interval} batches: must be a multiple of "
            f"accumulate_grad_batches={per_step}, as it is between two steps"
        )
    return found


def _length(training_set: Any) -> float:  # noqa: ANN401 - see `TrainingSet`
    try:
        return len(training_set)
    except TypeError:
        return float("inf")


def _connector(trainer: Trainer) -> Any:  # noqa: ANN401 - Lightning's own
    return trainer._accelerator_connector


def _accelerator(trainer: Trainer) -> str:
    return type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
