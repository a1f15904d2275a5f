"""What differs between the ways to train: each training mode is a class of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch.utils.data import DataLoader

from hetero_hvd.messages.launch import ModeName
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.data.samplers import Sampling
from hetero_hvd.worker.data.seeding import Seeds
from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.model.check import ModelCheck
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.session.launch_settings import LaunchSettings
from hetero_hvd.worker.shards.optional_shards import OptionalShards
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer
from hetero_hvd.worker.step.passes import Passes
from hetero_hvd.worker.step.staleness import Staleness, staleness_of
from hetero_hvd.worker.step.training_step import TrainingStep


class Script(NamedTuple):
    """What a script has given to its trainer.

    Attributes:
        model: Moved to `device` already.
        optimizer: Of its parameters.
        loader: Of the training set.
        sampling: The orders of its epochs.
        options: How to take a step.
        seed: The run's.
        device: Of this worker.
        settings: What this worker was told at its start.
        name: Of the model where a script trains several in one loop; empty for the first.
        shards: The optimizer's state in parts; None: each worker has all of it.
        clock: Of the steps' phases, where they are those of another model's; None: its own.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Any]
    sampling: Sampling
    options: StepOptions
    seed: int
    device: torch.device
    settings: LaunchSettings
    name: str = ""
    clock: PhaseClock | None = None
    shards: ShardedOptimizer | None = None

    def in_parts(self) -> Script:
        """The same with the optimizer's state in parts, if it is to be, or may be.

        Raises:
            UserError: It cannot be.
        """
        wanted = self.options.shard_optimizer
        if not wanted:
            return self
        ModelCheck(self.model, self.optimizer).run()
        kind = OptionalShards if wanted == "auto" else ShardedOptimizer
        return self._replace(shards=kind(self.optimizer, self.options.bucket_bytes))

    def passes(self) -> Passes:
        """The model's passes on this worker's device, in micro-batches as the options say."""
        most = self.settings.launch.max_micro_batch
        sizing = MicroBatchSizer.of(self.options, self.device, most)
        return Passes(self.device, sizing, self.options.scaler, self.clock)


class TrainingMode(ABC):
    """One way to train, decided for one script; what it leaves open is as in the synchronous one.

    Args:
        script: What is trained.

    Attributes:
        name: As users call it.
        shares_vary: Whether a worker takes in each step what it gets done, whatever the plan says.
        needs_equal_models: Whether all workers' scripts have to start with the same parameters;
            else all take over those of one.
        grain: Samples that are never divided, and that are read and collated by themselves; None:
            any number of samples can be a share.
        staleness: How many steps may be under way.
        shards: The optimizer's state in parts; None: each worker has all of it.

    Raises:
        UserError: What the script has given cannot be trained in this mode; says why.
    """

    name: ClassVar[ModeName]
    shares_vary: ClassVar[bool] = False
    needs_equal_models: ClassVar[bool] = False
    grain: int | None = None

    def __init__(self, script: Script) -> None:
        self.staleness: Staleness = staleness_of(script.options)
        self.shards = script.shards
        self._script = script

    @abstractmethod
    def make_step(self, loader: ShareLoader) -> TrainingStep:
        """What computes and applies the steps of the script's model.

        Args:
            loader: The script's loader, divided between the workers.
        """

    @property
    def numerics(self) -> str:
        """All that bits depend on beside the script, `; ` between two facts; empty: no matter."""
        return ""

    def seeds(self, epoch: int, step_in_epoch: int) -> Seeds | None:  # noqa: ARG002
        """The seeds of a step; None: random numbers go their own course on each worker."""
        return None
