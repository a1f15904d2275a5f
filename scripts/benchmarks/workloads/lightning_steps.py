"""Steps of one length in four ways, in turns in the same processes: `… FOLDER` with its job.json.

The model holds its passes to the same time in each way; what a step takes longer is overhead.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from benchmarks.workloads.held_passes import HeldPasses, take_turns
from benchmarks.workloads.horovod_sums import average_gradients
from hetero_hvd.integrations.lightning import HeteroStrategy

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
        self.passes = HeldPasses(held_seconds, self.embedding.weight)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Of predicting each number from itself."""
        self.passes.begin()
        logits = self.head(self.embedding(ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ANN401, ARG002
        """The loss, which is logged."""
        loss = self.loss(batch[0])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_after_backward(self) -> None:
        """The passes are over."""
        if self._sums:
            average_gradients(self)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As in the own loop."""
        return torch.optim.AdamW(self.parameters(), lr=5e-5, fused=True)


def main() -> None:
    """Train in all ways, so many times."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    held, batch, num_steps = job["step_seconds"], job["batch"], job["num_steps"]
    part = batch // job["num_workers"]

    def by(size: int, *, sums: bool = False, **given: Any) -> HeldPasses:  # noqa: ANN401
        return _by_lightning(TokenModule(held, sums=sums), size, num_steps, **given)

    ways = {
        "own loop": lambda: _by_own_loop(held, batch, num_steps),
        "Lightning": lambda: by(part),
        "Horovod": lambda: by(part, sums=True),
        "ours": lambda: by(batch, strategy=HeteroStrategy()),
    }
    take_turns(ways, job["num_rounds"], folder)


def _loader(batch: int, num_steps: int) -> DataLoader[Any]:
    torch.manual_seed(0)
    ids = torch.randint(0, NUM_TOKENS, (batch * num_steps, 16))
    return DataLoader(TensorDataset(ids), batch, shuffle=True)


def _by_lightning(
    module: TokenModule,
    batch: int,
    num_steps: int,
    **given: Any,  # noqa: ANN401 - of Lightning's Trainer
) -> HeldPasses:
    trainer = pl.Trainer(
        max_steps=num_steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    trainer.fit(module, _loader(batch, num_steps))
    return module.passes


def _by_own_loop(held_seconds: float, batch: int, num_steps: int) -> HeldPasses:
    module = TokenModule(held_seconds)
    optimizer: Any = module.configure_optimizers()
    trainer = hetero_hvd.Trainer(module, optimizer, _loader(batch, num_steps))
    for _ in trainer.epochs(1):
        for (ids,) in trainer.batches():
            trainer.step(module.loss, ids)
    return module.passes


if __name__ == "__main__":
    main()
