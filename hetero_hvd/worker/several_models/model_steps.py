"""What each of several models has for itself, and which models can be trained in one loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker import arguments
from hetero_hvd.worker.model.registered import Registered
from hetero_hvd.worker.model.sync_batch_norm import SyncBatchNorm
from hetero_hvd.worker.options import check_functions
from hetero_hvd.worker.reduction.buffer_average import kept_buffers
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.schedule import Schedule
from hetero_hvd.worker.step.training_mode import Script, TrainingMode
from hetero_hvd.worker.step.training_step import TrainingStep

OWN_OPTIONS = ("scaler", "clip", "micro_batch_size", "bucket_bytes", "compression")
"""Options that a further model has for itself; all others are the trainer's."""


class ModelSteps:
    """The steps of one of the models.

    Args:
        name: Of the model; empty for the trainer's own.
        model: The model.
        step: Computes and applies its steps.
        pipeline: Takes them.
        schedule: Of its learning rate.
    """

    def __init__(
        self,
        name: str,
        model: torch.nn.Module,
        step: TrainingStep,
        pipeline: Pipeline,
        schedule: Schedule,
    ) -> None:
        self.name = name
        self.model = model
        self.step = step
        self.pipeline = pipeline
        self.schedule = schedule
        self._registered = Registered(model)

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Around a step of another model: this one gets no gradients, and keeps its buffers."""
        trained = [each for each in self.model.parameters() if each.requires_grad]
        with kept_buffers(self._registered):
            for parameter in trained:
                parameter.requires_grad_(False)
            try:
                yield
            finally:
                for parameter in trained:
                    parameter.requires_grad_(True)


def beside(
    script: Script,
    what: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: Mapping[str, Any],
) -> Script:
    """What the trainer has been given, with another model in place of its own.

    Args:
        script: The trainer's.
        what: The call that adds the model, for errors.
        model: Moved to this worker's device.
        optimizer: Of its parameters.
        options: Those of `OWN_OPTIONS` that it has.

    Raises:
        UserError: No such model, optimizer or option is possible beside the trainer's.
    """
    if script.shards is not None:
        raise UserError(
            f"{what}: not with shard_optimizer, which is proven for one model alone; leave that out"
        )
    arguments.check_model(model, optimizer, what)
    others = [key for key in options if key not in OWN_OPTIONS]
    if others:
        raise UserError(
            f"{what}: {', '.join(others)} is the trainer's, for all models; a further one has "
            f"{', '.join(OWN_OPTIONS)}"
        )
    own: dict[str, Any] = {"scaler": None, "clip": None, **options}
    found = replace(script.options, **own)
    check_functions(found)
    if found.equal_micro_batches and found.micro_batch_size != script.options.micro_batch_size:
        raise UserError(
            f"{what}: micro_batch_size={found.micro_batch_size}: with equal_micro_batches all "
            "models have the trainer's"
        )
    return script._replace(model=model.to(script.device), optimizer=optimizer, options=found)


def check_name(what: str, name: object, others: Sequence[str]) -> None:
    """Refuse a name under which a model's state cannot be kept.

    Raises:
        UserError: It is none, or another model has it.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UserError(f"{what}: must be a name of letters, digits and _, such as 'critic'")
    if name in others:
        raise UserError(f"{what}: there is one of that name; take another")


def check_mode(what: str, mode: TrainingMode) -> None:
    """Refuse a mode in which a step may begin before the last one is applied everywhere.

    Raises:
        UserError: It is one.
    """
    if mode.shares_vary or mode.staleness.bound:
        found = f"mode {mode.name}" if mode.shares_vary else "staleness_bound"
        raise UserError(
            f"{what}: the steps of several models end one after the other, which {found} does not "
            "allow; take that out"
        )


def check_models(what: str, models: Sequence[torch.nn.Module]) -> None:
    """Refuse models that cannot take their steps one after the other.

    Raises:
        UserError: Two share parameters, or one meets the other workers in its forward pass.
    """
    seen: set[int] = set()
    for model in models:
        own = {id(parameter) for parameter in model.parameters()}
        if own & seen:
            raise UserError(f"{what}: it shares parameters with another model of this trainer")
        seen |= own
    modules = (module for model in models for module in model.modules())
    if any(isinstance(module, SyncBatchNorm) for module in modules):
        raise UserError(
            f"{what}: layers that normalise over all workers cannot be divided between several "
            "models' steps; leave out convert_sync_batch_norm"
        )
