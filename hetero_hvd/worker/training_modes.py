"""The three ways to train: in steps, in grains that give the same bits, in wait-free rounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.data import IterableDataset

from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.reproducible.grain_step import GrainStep
from hetero_hvd.worker.reproducible.mode import Reproducible
from hetero_hvd.worker.step.pipeline import Pipeline
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.step import Step
from hetero_hvd.worker.wait_free.round_step import RoundStep
from hetero_hvd.worker.wait_free.rounds import ChunkRounds, RoundPipeline

CHUNKS_PER_ROUND = 16
"""So that a worker of a sixteenth of the cluster's speed still takes part in each round."""


def make_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: StepOptions,
    device: torch.device,
    *,
    mode: Reproducible | None,
    staleness: Staleness,
) -> Step:
    """What computes and applies the steps of a model."""
    if options.wait_free:
        return RoundStep(model, optimizer, options, device, staleness)
    if mode is None:
        return Step(model, optimizer, options, device, staleness)
    return GrainStep(model, optimizer, options, device, mode)


def make_rounds(
    step: Step, options: StepOptions, loader: ShareLoader, dataset: object, bound: int
) -> ChunkRounds | None:
    """The rounds of a script; None: it trains in steps.

    Raises:
        UserError: There can be none; says why.
    """
    if not isinstance(step, RoundStep):
        return None
    if isinstance(dataset, IterableDataset):
        raise UserError("wait_free: an IterableDataset cannot be read from any position")
    size = options.micro_batch_size
    if not isinstance(size, int):
        size = max(1, loader.global_batch_size // CHUNKS_PER_ROUND)
    return ChunkRounds(loader, step, size, bound)


def make_pipeline(
    step: Step, staleness: Staleness, applied: Callable[[float], None], rounds: ChunkRounds | None
) -> Pipeline:
    """The way from computed steps to applied ones."""
    if rounds is None:
        return Pipeline(step, staleness, applied)
    return RoundPipeline(rounds, staleness, applied)
