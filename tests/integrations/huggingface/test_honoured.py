"""Each honoured argument has the effect that it has in plain transformers.

One process trains a small model thrice: plainly without the argument, plainly with it, and with
hetero_hvd. The first two must differ, so that the comparison of the last two says something.
"""

import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
)

from hetero_hvd.integrations.huggingface import Trainer
from hetero_hvd.integrations.huggingface.arguments import RULES
from hetero_hvd.integrations.rules import Treatment

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of transformers, about old words
    pytest.mark.matrix,
]

UNLIKE = ("runtime", "_per_second", "mem_", "_mem", "total_flos")
"""Parts of names of logged numbers that no two trainings have in common."""

EVALUATES = {"eval_strategy": "steps", "eval_steps": 2}
SAVES = {"save_strategy": "steps", "save_steps": 2}
KEEPS_BEST = EVALUATES | SAVES | {"load_best_model_at_end": True}
WORKS = {"dataloader_num_workers": 1}

CASES = {  # name: (value, arguments without which it has no effect)
    "output_dir": ("elsewhere", SAVES),
    "num_train_epochs": (1, {}),
    "max_steps": (3, {}),
    "learning_rate": (0.05, {}),
    "lr_scheduler_type": ("cosine", {}),
    "lr_scheduler_kwargs": ({"num_cycles": 2}, {"lr_scheduler_type": "cosine_with_restarts"}),
    "warmup_steps": (3, {}),
    "weight_decay": (0.5, {}),
    "adam_beta1": (0.5, {}),
    "adam_beta2": (0.9, {}),
    "adam_epsilon": (0.1, {}),
    "max_grad_norm": (0.01, {"optim": "sgd"}),
    "label_smoothing_factor": (0.3, {}),
    "bf16": (True, {}),
    "bf16_full_eval": (True, {}),
    "fp16_full_eval": (True, {}),
    "gradient_checkpointing": (True, {}),
    "gradient_checkpointing_kwargs": ({"use_reentrant": True}, {"gradient_checkpointing": True}),
    "neftune_noise_alpha": (5.0, {}),
    "logging_strategy": ("epoch", {}),
    "logging_steps": (2, {}),
    "logging_first_step": (True, {"logging_steps": 3}),
    "include_num_input_tokens_seen": ("all", {}),
    "log_level": ("info", {}),
    "disable_tqdm": (False, {}),
    "run_name": ("mine", {}),
    "project": ("mine", {}),
    "eval_strategy": ("epoch", {}),
    "eval_steps": (3, EVALUATES),
    "eval_delay": (3, EVALUATES),
    "per_device_eval_batch_size": (3, EVALUATES),
    "prediction_loss_only": (True, EVALUATES),
    "eval_on_start": (True, EVALUATES),
    "eval_do_concat_batches": (False, EVALUATES),
    "include_for_metrics": (["inputs", "loss"], EVALUATES),
    "batch_eval_metrics": (True, EVALUATES),
    "save_only_model": (True, SAVES),
    "save_strategy": ("epoch", {}),
    "save_steps": (3, SAVES),
    "save_total_limit": (1, SAVES),
    "load_best_model_at_end": (True, EVALUATES | SAVES),
    "metric_for_best_model": ("eval_mean", KEEPS_BEST),
    "greater_is_better": (True, KEEPS_BEST),
    "seed": (7, {}),
    "data_seed": (7, {}),
    "full_determinism": (True, {}),
    "dataloader_drop_last": (True, {"per_device_eval_batch_size": 5}),  # of training alone
    "dataloader_num_workers": (1, {}),
    "dataloader_persistent_workers": (True, WORKS),
    "dataloader_prefetch_factor": (3, WORKS),
    "dataloader_multiprocessing_context": ("forkserver", WORKS),
    "label_names": (["labels", "more"], EVALUATES),
    "skip_memory_metrics": (False, {}),
    "do_train": (True, {}),
    "do_eval": (True, {}),
    "do_predict": (True, {}),
}
"""Their effect is seen in what a training leaves."""

ELSEWHERE = {
    "fp16": "test_loss_scale.py",
    "resume_from_checkpoint": "test_resuming.py",
    "restore_callback_states_from_checkpoint": "tests/driver/test_huggingface.py",
    "logging_nan_inf_filter": "tests/worker: a step whose numbers are not finite changes nothing",
    "remove_unused_columns": "datasets, which is not installed here",
    "length_column_name": "test_trainer.py: samples grouped by length",
    "log_level_replica": "a job of several workers",
    "report_to": "a package that is not installed here: which callbacks there are is transformers'",
    "torch_compile": "tests/worker: a compiled model; here it would take a minute",
    "torch_compile_backend": "see torch_compile",
    "torch_compile_mode": "see torch_compile",
    "activation_checkpointing": "the same switch as gradient_checkpointing",
    "activation_checkpointing_kwargs": "see activation_checkpointing",
    "optim_args": "an optimizer of a package that is not installed here",
    "optim_target_modules": "see optim_args",
    "use_liger_kernel": "a package that needs a GPU",
    "liger_kernel_config": "see use_liger_kernel",
    "use_cache": "a model that generates: of the model's own forward pass",
    "tf32": "a GPU",
    "dataloader_pin_memory": "a GPU",
    "trackio_space_id": "a service",
    "trackio_bucket_id": "a service",
    "trackio_static_space_id": "a service",
}
"""Honoured, and not seen here: where, or what is missing."""


class Rows(torch.utils.data.Dataset):
    """Sequences of numbers, of two classes."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.ids = torch.randint(1, 30, (count, 6), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "labels": int(ids.sum() % 2)}


class Events(TrainerCallback):
    """What is called at which step."""

    def __init__(self):
        self.seen = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda _, state, __, **___: self.seen.append((name, state.global_step))


def make_model():
    """The same one each time."""
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


BASE = {
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "num_train_epochs": 2,
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "use_cpu": True,
    "learning_rate": 0.01,
    "remove_unused_columns": False,
    "dataloader_pin_memory": False,
}


def found_by(kind, folder: Path, given):
    """All that a training leaves: numbers, calls, files, settings."""
    named = folder / given.get("output_dir", "out")
    args = TrainingArguments(**BASE | given | {"output_dir": str(named)})
    events, shapes = Events(), []

    def metrics(found, compute_result=True):
        parts = found.predictions if isinstance(found.predictions, list) else [found.predictions]
        shapes.append(
            (list(map(np.shape, parts)), found.inputs is None, found.losses is None, compute_result)
        )
        return {"mean": float(np.mean(np.asarray(parts[0])))}

    np.random.seed(3)  # noqa: NPY002 - the generator that transformers uses
    random.seed(3)
    trainer = kind(
        make_model(),
        args,
        train_dataset=Rows(18),
        eval_dataset=Rows(10),
        compute_metrics=metrics,
        callbacks=[events],
    )
    trainer.train()
    trainer.evaluate()
    found = left_by(trainer)
    found["calls"] = events.seen, shapes
    found["files"] = sorted(str(each.relative_to(folder)) for each in folder.rglob("*.*"))
    return found


def left_by(trainer):
    """What a trainer has, after it has trained."""
    model, loader = trainer.model, trainer.get_train_dataloader()
    logs = trainer.state.log_history
    context = loader.multiprocessing_context
    return {
        "names": [sorted(log) for log in logs],
        "logs": [
            value
            for log in logs
            for name, value in log.items()
            if not any(part in name for part in UNLIKE)
        ],
        "weights": torch.cat([each.detach().flatten() for each in model.parameters()]).tolist(),
        "best": str(trainer.state.best_model_checkpoint),
        "log level": logging.getLogger("transformers").level,
        "has bar": any(
            "Progress" in type(each).__name__ for each in trainer.callback_handler.callbacks
        ),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "loader": [
            getattr(loader, name)
            for name in ("num_workers", "persistent_workers", "prefetch_factor", "drop_last")
        ],
        "context": context and context.get_start_method(),
        "checkpointing": [
            each._gradient_checkpointing_func.keywords
            for each in model.modules()
            if getattr(each, "gradient_checkpointing", False)
        ],
        "arguments": [
            getattr(trainer.args, name)
            for name in ("run_name", "project", "do_train", "do_eval", "do_predict")
        ],
    }


@pytest.fixture(autouse=True)
def as_it_was():
    """What an argument may change for the whole process."""
    level = transformers.utils.logging.get_verbosity()
    yield
    transformers.utils.logging.set_verbosity(level)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(torch.get_num_threads())


def test_each_honoured_argument_is_tried():
    """Or it is said where, or what is missing for that."""
    honoured = {name for name, rule in RULES.items() if rule.treatment is Treatment.HONOURED}
    assert honoured == CASES.keys() | ELSEWHERE.keys()
    assert not CASES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", CASES)
def test_an_honoured_argument_has_its_effect(tmp_path, name):
    """The same one as in plain transformers."""
    value, more = CASES[name]
    found = {}
    for way, kind, given in (
        ("without", transformers.Trainer, more),
        ("plain", transformers.Trainer, more | {name: value}),
        ("ours", Trainer, more | {name: value}),
    ):
        (folder := tmp_path / way).mkdir()
        found[way] = found_by(kind, folder, given)
        found[way]["best"] = found[way]["best"].replace(str(folder), "")
        transformers.utils.logging.set_verbosity_warning()
        torch.use_deterministic_algorithms(False)
    assert found["plain"] != found["without"], "it has no effect here"
    for what, expected in found["plain"].items():
        told = found["ours"][what]
        if what in ("logs", "weights"):
            assert told == pytest.approx(expected, rel=1e-5, abs=1e-7, nan_ok=True), what
        else:
            assert told == expected, what
