"""Steps of one length in four ways, in turns in the same processes: `… FOLDER` with its job.json.

Each worker holds the passes of a step to the same time: by the emulated device where hetero_hvd
takes the steps, by sleeping where Lightning does, alone or with a sum by Horovod itself. What
a step takes longer is overhead. The leader leaves result.json: name of the way to seconds of its
steps.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from benchmarks.workloads.horovod_sums import average_gradients
from hetero_hvd.integrations.lightning import HeteroStrategy

NUM_WARMUP_STEPS = 25
"""Until timings are exchanged once a second, as in all later steps."""
NUM_TOKENS = 64


class TokenModule(pl.LightningModule):
    """A small model, which logs as many do.

    Args:
        held_seconds: What a step's passes take at least.
        sums: Whether the gradients of all workers are averaged by Horovod itself.
    """

    def __init__(self, held_seconds: float, *, sums: bool = False) -> None:
        super().__init__()
        self._sums = sums
        self.embedding = torch.nn.Embedding(NUM_TOKENS, 128)
        self.head = torch.nn.Linear(128, NUM_TOKENS)
        self._held_seconds = held_seconds
        self._began_seconds = 0.0

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Of predicting each number from itself."""
        logits = self.head(self.embedding(ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ANN401, ARG002
        """The loss, which is logged."""
        self._began_seconds = time.perf_counter()
        loss = self.loss(batch[0])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_after_backward(self) -> None:
        """The passes are over: the rest of their time."""
        left = self._began_seconds + self._held_seconds - time.perf_counter()
        if left > 0:  # even a sleep of 0 takes its time, after the hold of the emulated device
            time.sleep(left)
        if self._sums:
            average_gradients(self)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As in the own loop."""
        return torch.optim.AdamW(self.parameters(), lr=5e-5, fused=True)


class StepEnds(pl.Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.at_seconds: list[float] = []

    def on_train_batch_end(self, *_: object) -> None:
        """A step has ended."""
        self.at_seconds.append(time.perf_counter())


def main() -> None:
    """Train in all ways, so many times."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    batch, num_steps = job["batch"], job["num_steps"]
    found: dict[str, list[float]] = defaultdict(list)
    part, held = batch // job["num_workers"], job["step_seconds"]
    for _ in range(job["num_rounds"]):
        found["own loop"] += _seconds(_by_own_loop(batch, num_steps))  # first: it starts Horovod
        plain = _by_lightning(part, num_steps, TokenModule(held))
        found["Lightning"] += _seconds(plain)
        summed = _by_lightning(part, num_steps, TokenModule(held, sums=True))
        found["Horovod"] += _seconds(summed)
        strategy = HeteroStrategy()
        ours = _by_lightning(batch, num_steps, TokenModule(0.0), strategy=strategy)
        found["ours"] += _seconds(ours)
    if strategy.is_global_zero:
        (folder / "result.json").write_text(json.dumps(found))


def _seconds(ends: list[float]) -> list[float]:
    late = ends[NUM_WARMUP_STEPS:]
    return [after - before for before, after in pairwise(late)]


def _loader(batch: int, num_steps: int) -> DataLoader[Any]:
    torch.manual_seed(0)
    ids = torch.randint(0, NUM_TOKENS, (batch * num_steps, 16))
    return DataLoader(TensorDataset(ids), batch, shuffle=True)


def _by_lightning(
    batch: int,
    num_steps: int,
    module: TokenModule,
    **given: Any,  # noqa: ANN401 - of Lightning's Trainer
) -> list[float]:
    ends = StepEnds()
    trainer = pl.Trainer(
        max_steps=num_steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ends],
        **given,
    )
    trainer.fit(module, _loader(batch, num_steps))
    return ends.at_seconds


def _by_own_loop(batch: int, num_steps: int) -> list[float]:
    module = TokenModule(0.0)
    optimizer: Any = module.configure_optimizers()
    trainer = hetero_hvd.Trainer(module, optimizer, _loader(batch, num_steps))
    ends = []
    for _ in trainer.epochs(1):
        for (ids,) in trainer.batches():
            trainer.step(module.loss, ids)
            ends.append(time.perf_counter())
    return ends


if __name__ == "__main__":
    main()
