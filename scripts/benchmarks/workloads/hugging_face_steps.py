"""Steps of one length in four ways, in turns in the same processes: `… FOLDER` with its job.json.

The model holds its passes to the same time in each way; what a step takes longer is overhead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader

import hetero_hvd
from benchmarks.workloads.held_passes import HeldPasses, take_turns
from benchmarks.workloads.horovod_sums import average_gradients
from hetero_hvd.integrations.huggingface import Trainer


class TokenNet(torch.nn.Module):
    """A small model, as transformers expects one.

    Args:
        held_seconds: What a step's passes take at least.
    """

    def __init__(self, held_seconds: float) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 128)
        self.head = torch.nn.Linear(128, 64)
        self.passes = HeldPasses(held_seconds, self.embedding.weight)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of predicting each number from itself."""
        self.passes.begin()
        logits = self.head(self.embedding(ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}

    def floating_point_ops(self, _inputs: object) -> int:
        """Of no interest here."""
        return 0


class HorovodSums(transformers.TrainerCallback):
    """Averages the gradients of all workers, as a script for Horovod alone does."""

    def on_pre_optimizer_step(self, *_: object, **named: Any) -> None:  # noqa: ANN401 - as there
        """The passes are over."""
        average_gradients(named["model"])


def main() -> None:
    """Train in all ways, so many times."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    held, batch, num_steps = job["step_seconds"], job["batch"], job["num_steps"]
    part = batch // job["num_workers"]

    def by(base: type[transformers.Trainer], size: int, *callbacks: Any) -> HeldPasses:  # noqa: ANN401
        torch.manual_seed(0)
        model = TokenNet(held)
        args = _arguments(folder, size, num_steps)
        rows = _rows(size * num_steps)
        base(model, args, train_dataset=rows, callbacks=list(callbacks)).train()
        return model.passes

    ways = {
        "own loop": lambda: _by_own_loop(held, batch, num_steps),
        "transformers": lambda: by(transformers.Trainer, part),
        "Horovod": lambda: by(transformers.Trainer, part, HorovodSums()),
        "ours": lambda: by(Trainer, batch),
    }
    take_turns(ways, job["num_rounds"], folder)


def _rows(count: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, 64, (count, 16))
    return [{"ids": row, "labels": row} for row in ids]


def _arguments(folder: Path, batch: int, num_steps: int) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        str(folder / "hf"),
        per_device_train_batch_size=batch,
        max_steps=num_steps,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )


def _by_own_loop(held_seconds: float, batch: int, num_steps: int) -> HeldPasses:
    torch.manual_seed(0)
    model = TokenNet(held_seconds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    loader: DataLoader[Any] = DataLoader(_rows(batch * num_steps), batch, shuffle=True)  # type: ignore[arg-type]
    trainer = hetero_hvd.Trainer(model, optimizer, loader)
    for _ in trainer.epochs(1):
        for rows in trainer.batches():
            trainer.step(lambda found: model(**found)["loss"], rows)
    return model.passes


if __name__ == "__main__":
    main()
