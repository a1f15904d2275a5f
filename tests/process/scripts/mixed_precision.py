"""Trains with Hugging Face's Trainer in each precision, and tells scale and weights by step."""

from pathlib import Path
from typing import ClassVar

import torch
import transformers
from accelerate.utils import GradScalerKwargs
from scripted import arguments, follow, report

from hetero_hvd.integrations.huggingface import Trainer
from hetero_hvd.worker.session.worker_context import init

PLANS = [[5, 3], [8, 0], [0, 8], [2, 6]]
TOO_LARGE = 2.0**127
"""A loss of 2 or more is infinite at this scale, also in single precision."""


class Regression(torch.nn.Module):
    """A model as transformers expects one."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, inputs, labels):
        """Loss and output."""
        found = self.layer(inputs).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found.float(), labels), "logits": found}

    def floating_point_ops(self, _):
        """Of no interest here."""
        return 1


class Telling(transformers.TrainerCallback):
    """Notes scale, rate and weights after each step."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model=None, lr_scheduler=None, **named):  # noqa: ARG002
        """See above."""
        scaler = self.trainer._scaler
        weights = [each.tolist() for each in model.parameters()]
        self.steps.append([scaler and scaler.get_scale(), lr_scheduler.get_last_lr(), weights])


class Scaling(Trainer):
    """With the options of a scaler."""

    handler: ClassVar = {}

    def _build_accelerator_args(self, **named):
        found = super()._build_accelerator_args(**named)
        found["kwargs_handlers"] += [GradScalerKwargs(**self.handler)] if self.handler else []
        return found


def train(name, handler=None, **given):
    """One training of 32 steps; what each step has left, and the losses."""
    follow(PLANS)
    torch.manual_seed(0)
    inputs = torch.randn(64, 3)
    labels = inputs @ torch.tensor([9.0, -6.0, 3.0])
    rows = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
    args = transformers.TrainingArguments(
        str(Path(arguments()["output"], name)), report_to="none", disable_tqdm=True,
        save_steps=32, use_cpu=True, num_train_epochs=4, per_device_train_batch_size=8,
        remove_unused_columns=False, learning_rate=0.1, optim="sgd", max_grad_norm=1e3,
        logging_steps=1, **given,
    )  # fmt: skip
    telling = Telling()
    Scaling.handler = handler or {}
    trainer = Scaling(Regression(), args, train_dataset=rows, callbacks=[telling])
    telling.trainer = trainer
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return {"steps": telling.steps, "losses": losses}


init()
report(
    {
        "single": train("single"),
        "float16": train("float16", {"init_scale": TOO_LARGE}, fp16=True),
        "float16, not scaled": train("not-scaled", {"enabled": False}, fp16=True),
        "bfloat16": train("bfloat16", bf16=True),
    }
)
