"""Every argument of `TrainingArguments`: what becomes of it here.

The page docs/reference/huggingface.md is made of this table, and a test walks the installed
version's fields: an argument that nobody has thought of is refused, not passed over.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from hetero_hvd.data.streams.stream_shards import LaneSampler, StreamShards
from hetero_hvd.errors import ConfigError, UserError
from hetero_hvd.integrations.rules import (
    HONOURED,
    ArgumentRule,
    Given,
    honoured,
    refusals,
    refused,
    taken_over,
)
from hetero_hvd.integrations.steps import IN_PARTS, ShardOptimizer, check_shard_optimizer


def _updates_in_backward(optim: Any) -> bool:  # noqa: ANN401 - an enum of transformers
    return "lomo" in optim.value or "layerwise" in optim.value


def _is_plain_accelerator(config: Any) -> bool:  # noqa: ANN401 - a dataclass of accelerate
    return not (config.split_batches or config.dispatch_batches or config.use_configured_state)


DDP = taken_over("of DistributedDataParallel, which is not used: hetero_hvd reduces")
HUB = taken_over("counts for `trainer.push_to_hub()` after training")
SHARDED = "shards the model over equal processes: each worker holds the whole model here"

RULES: dict[str, ArgumentRule] = {
    "output_dir": honoured("the same on all nodes; the leader writes there"),
    "per_device_train_batch_size": taken_over(
        "the samples of all workers together in one forward pass: the global batch is this times "
        "`gradient_accumulation_steps`, whatever the number of workers, which divide it by speed"
    ),
    "num_train_epochs": HONOURED,
    "max_steps": HONOURED,
    "learning_rate": honoured("needs no change with the number of workers"),
    "lr_scheduler_type": HONOURED,
    "lr_scheduler_kwargs": HONOURED,
    "warmup_steps": HONOURED,
    "optim": refused(
        "updates in the backward pass, before gradients are summed over the workers: choose an "
        "optimizer that does not, such as adamw_torch",
        lambda optim: not _updates_in_backward(optim),
    ),
    "optim_args": HONOURED,
    "weight_decay": HONOURED,
    "adam_beta1": HONOURED,
    "adam_beta2": HONOURED,
    "adam_epsilon": HONOURED,
    "optim_target_modules": HONOURED,
    "gradient_accumulation_steps": taken_over(
        "batches in a step; a worker computes its part of them in passes of at most "
        "`per_device_train_batch_size` samples, and gradients are reduced once"
    ),
    "average_tokens_across_devices": refused(
        "a loss over tokens is a mean over those of all workers here: leave it as it is", bool
    ),
    "max_grad_norm": honoured("the norm is that of the gradients of the whole step"),
    "label_smoothing_factor": HONOURED,
    "bf16": HONOURED,
    "fp16": honoured(
        "in a job all workers scale their losses alike and skip the same steps; one on a CPU "
        "computes in single precision, as in plain transformers"
    ),
    "bf16_full_eval": HONOURED,
    "fp16_full_eval": HONOURED,
    "tf32": HONOURED,
    "activation_checkpointing": HONOURED,
    "activation_checkpointing_kwargs": HONOURED,
    "gradient_checkpointing": HONOURED,
    "gradient_checkpointing_kwargs": HONOURED,
    "torch_compile": honoured("shares vary, so shapes do: expect some compilations more"),
    "torch_compile_backend": HONOURED,
    "torch_compile_mode": HONOURED,
    "use_liger_kernel": HONOURED,
    "liger_kernel_config": HONOURED,
    "use_cache": HONOURED,
    "neftune_noise_alpha": HONOURED,
    "torch_empty_cache_steps": taken_over("memory is freed where it is short"),
    "auto_find_batch_size": taken_over(
        "a part that the memory does not hold is computed in smaller pieces; the batch size stays"
    ),
    "logging_strategy": HONOURED,
    "logging_steps": HONOURED,
    "logging_first_step": HONOURED,
    "log_on_each_node": taken_over("the leader logs, once for the job"),
    "logging_nan_inf_filter": honoured("a step whose numbers are not finite changes nothing here"),
    "include_num_input_tokens_seen": honoured("of all workers"),
    "log_level": honoured("of the leader"),
    "log_level_replica": honoured("of the other workers"),
    "disable_tqdm": HONOURED,
    "report_to": honoured("the leader reports"),
    "run_name": HONOURED,
    "project": HONOURED,
    "trackio_space_id": HONOURED,
    "trackio_bucket_id": HONOURED,
    "trackio_static_space_id": HONOURED,
    "eval_strategy": HONOURED,
    "eval_steps": HONOURED,
    "eval_delay": HONOURED,
    "per_device_eval_batch_size": honoured("whole batches are divided among the workers"),
    "prediction_loss_only": HONOURED,
    "eval_on_start": HONOURED,
    "eval_do_concat_batches": HONOURED,
    "eval_use_gather_object": taken_over("predictions are gathered in order, whatever their shape"),
    "eval_accumulation_steps": taken_over("predictions go to the host's memory batch by batch"),
    "include_for_metrics": HONOURED,
    "batch_eval_metrics": HONOURED,
    "save_only_model": honoured("must be set where something is saved with `shard_optimizer`"),
    "save_strategy": honoured("the leader writes"),
    "save_steps": HONOURED,
    "save_on_each_node": refused("the leader writes checkpoints: give all nodes one folder"),
    "save_total_limit": HONOURED,
    "enable_jit_checkpoint": refused(
        "a worker that gets SIGTERM finishes its step and leaves, and the others go on: set "
        "checkpoint_seconds in nodes.yaml for a job that ends as a whole"
    ),
    "push_to_hub": refused("uploads during training: call `trainer.push_to_hub()` after it"),
    "hub_token": HUB,
    "hub_private_repo": HUB,
    "hub_model_id": HUB,
    "hub_strategy": HUB,
    "hub_always_push": HUB,
    "hub_revision": HUB,
    "load_best_model_at_end": honoured("on all workers, also where only the leader sees the file"),
    "metric_for_best_model": HONOURED,
    "greater_is_better": HONOURED,
    "ignore_data_skip": refused("each sample is used once: training goes on where it was"),
    "restore_callback_states_from_checkpoint": HONOURED,
    "full_determinism": honoured(
        "of each worker by itself; for the same bits on any cluster set `mode: reproducible`"
    ),
    "seed": HONOURED,
    "data_seed": HONOURED,
    "use_cpu": taken_over("the device is that of the worker's slot: `devices` in nodes.yaml"),
    "accelerator_config": refused(
        "`split_batches`, `dispatch_batches` and `use_configured_state` divide batches among equal "
        "processes: leave them out",
        _is_plain_accelerator,
    ),
    "parallelism_config": refused(SHARDED),
    "dataloader_drop_last": honoured("of training; an evaluation takes each sample once"),
    "dataloader_num_workers": HONOURED,
    "dataloader_pin_memory": HONOURED,
    "dataloader_persistent_workers": HONOURED,
    "dataloader_prefetch_factor": HONOURED,
    "dataloader_multiprocessing_context": HONOURED,
    "dataloader_in_order": refused("a step's samples must be the same whoever reads them"),
    "remove_unused_columns": HONOURED,
    "label_names": HONOURED,
    "train_sampling_strategy": refused(
        "batch_rebalance divides batches among equal processes: use random, sequential or "
        "group_by_length, as hetero_hvd gives each worker what fits its speed",
        lambda strategy: strategy != "batch_rebalance",
    ),
    "length_column_name": HONOURED,
    "ddp_find_unused_parameters": DDP,
    "ddp_bucket_cap_mb": DDP,
    "ddp_broadcast_buffers": DDP,
    "ddp_static_graph": DDP,
    "ddp_backend": DDP,
    "ddp_timeout": DDP,
    "fsdp": refused(SHARDED, lambda value: not value),
    "fsdp_config": taken_over("counts with `fsdp` alone, which is refused"),
    "deepspeed": refused(SHARDED),
    "debug": refused(
        "tpu_metrics_debug is of a kind of device that hetero_hvd does not use",
        lambda options: all(each.value != "tpu_metrics_debug" for each in options),
    ),
    "skip_memory_metrics": honoured("what is measured is the leader's"),
    "do_train": HONOURED,
    "do_eval": HONOURED,
    "do_predict": HONOURED,
    "resume_from_checkpoint": honoured("the folder must be there on every node"),
    "local_rank": taken_over("hetero_hvd knows which worker this is"),
}


def check_arguments(args: TrainingArguments, *, shard_optimizer: ShardOptimizer = False) -> None:
    """Refuse what cannot be honoured, all of it at once.

    Args:
        args: The script's.
        shard_optimizer: Whether the optimizer's state lies in parts, or may do so.

    Raises:
        ConfigError: Names each argument with its value, why, and what to do.
        UserError: `shard_optimizer` is no such value, or what is saved would hold that state.
    """
    values = {
        field.name: Given(getattr(args, field.name), field.default)
        for field in fields(TrainingArguments)
    }
    problems = refusals("TrainingArguments", RULES, values)
    if problems:
        raise ConfigError(problems)
    check_shard_optimizer(shard_optimizer)
    if shard_optimizer:
        _check_saving(args)


def _check_saving(args: TrainingArguments) -> None:
    """Refuse checkpoints that would hold the optimizer's state, which lies in parts.

    Raises:
        UserError: They would; says what to do.
    """
    if args.save_strategy != SaveStrategy.NO and not args.save_only_model:
        raise UserError(
            f"TrainingArguments.save_only_model=False: {IN_PARTS}: set save_only_model=True, or "
            "save_strategy='no'"
        )


def order_of_shards(dataset: StreamShards, args: TrainingArguments) -> LaneSampler:
    """The order of a training on shards of a stream.

    Raises:
        UserError: One was asked for in which shards cannot be read.
    """
    strategy = args.train_sampling_strategy
    if strategy == "group_by_length":
        raise UserError(
            "train_sampling_strategy: group_by_length of StreamShards: a shard is read from its "
            "beginning: say random or sequential, or group the samples in its files"
        )
    batch_size = args.train_batch_size * args.gradient_accumulation_steps
    return dataset.sampler(batch_size, shuffle=strategy != "sequential")
