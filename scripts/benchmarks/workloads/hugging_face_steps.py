"""Steps of one length in four ways, in turns in the same processes: `… FOLDER` with its job.json.

Each worker holds the passes of a step to the same time: by the emulated device where hetero_hvd
takes the steps, by sleeping where transformers does, alone or with Horovod's sum of the gradients.
What a step takes longer is overhead. The leader leaves result.json: name of the way to seconds of
its steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader

import hetero_hvd
from benchmarks.workloads.horovod_sums import average_gradients
from hetero_hvd.integrations.huggingface import Trainer

NUM_WARMUP_STEPS = 25
"""Until timings are exchanged once a second, as in all later steps."""


class TokenNet(torch.nn.Module):
    """A small model, as transformers expects one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 128)
        self.head = torch.nn.Linear(128, 64)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of predicting each number from itself."""
        logits = self.head(self.embedding(ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}

    def floating_point_ops(self, _inputs: object) -> int:
        """Of no interest here."""
        return 0


class StepEnds(transformers.TrainerCallback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.at_seconds: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        """A step has ended."""
        self.at_seconds.append(time.perf_counter())


class HorovodSums(transformers.TrainerCallback):
    """Averages the gradients of all workers, as a script for Horovod alone does."""

    def on_pre_optimizer_step(self, *_: object, **named: Any) -> None:  # noqa: ANN401 - as there
        """The passes are over."""
        average_gradients(named["model"])


class HeldTrainer(transformers.Trainer):
    """transformers by itself, whose passes take a given time.

    Attributes:
        held_seconds: That time.
    """

    held_seconds = 0.0

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - as there
        """The passes of a step, and the rest of their time."""
        began = time.perf_counter()
        loss = super().training_step(*given, **named)
        time.sleep(max(0.0, began + self.held_seconds - time.perf_counter()))
        return loss


def main() -> None:
    """Train in all ways, so many times."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    HeldTrainer.held_seconds = job["step_seconds"]
    found: dict[str, list[float]] = defaultdict(list)
    trainer: Any = None
    batch, num_steps = job["batch"], job["num_steps"]
    part = batch // job["num_workers"]
    for _ in range(job["num_rounds"]):
        found["own loop"] += _seconds(_by_own_loop(batch, num_steps))  # first: it starts Horovod
        for way, base, size, sums in (
            ("transformers", HeldTrainer, part, ()),
            ("Horovod", HeldTrainer, part, (HorovodSums(),)),
            ("ours", Trainer, batch, ()),
        ):
            trainer, ends = _by_transformers(base, folder, size, num_steps, sums)
            found[way] += _seconds(ends)
    if trainer.is_world_process_zero():
        (folder / "result.json").write_text(json.dumps(found))


def _seconds(ends: list[float]) -> list[float]:
    late = ends[NUM_WARMUP_STEPS:]
    return [after - before for before, after in pairwise(late)]


def _rows(count: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, 64, (count, 16))
    return [{"ids": row, "labels": row} for row in ids]


def _by_transformers(
    base: type[transformers.Trainer],
    folder: Path,
    batch: int,
    num_steps: int,
    sums: Sequence[transformers.TrainerCallback],
) -> tuple[transformers.Trainer, list[float]]:
    torch.manual_seed(0)
    args = transformers.TrainingArguments(
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
    ends = StepEnds()
    trainer = base(
        TokenNet(), args, train_dataset=_rows(batch * num_steps), callbacks=[ends, *sums]
    )
    trainer.train()
    return trainer, ends.at_seconds


def _by_own_loop(batch: int, num_steps: int) -> list[float]:
    torch.manual_seed(0)
    model = TokenNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    loader: DataLoader[Any] = DataLoader(_rows(batch * num_steps), batch, shuffle=True)  # type: ignore[arg-type]
    trainer = hetero_hvd.Trainer(model, optimizer, loader)
    ends = []
    for _ in trainer.epochs(1):
        for rows in trainer.batches():
            trainer.step(lambda found: model(**found)["loss"], rows)
            ends.append(time.perf_counter())
    return ends


if __name__ == "__main__":
    main()
