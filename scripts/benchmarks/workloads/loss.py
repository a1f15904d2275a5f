"""Trains small models with several staleness bounds and seeds: `… FOLDER` with its job.json.

Real workers under `horovodrun`, real compute, even shares: with a fixed delay the result does not
depend on how fast anything is. Each training is one long epoch, so that nothing but its end empties
the pipeline; the learning rate goes down to nothing, so that the last loss is a settled one.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from benchmarks.workloads.grains import new_model as new_cnn

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
HELD_OUT_WINDOWS = 512


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train.

    Attributes:
        task: A key of `TASKS`.
        variants: Name to (options of the trainer, what is added to the seed of the data order).
        num_steps: Of each training.
        batch_size: Samples per step.
        seeds: Of model and data order.
    """

    task: str
    variants: dict[str, tuple[dict[str, Any], int]]
    num_steps: int
    batch_size: int
    seeds: list[int]


class TinyGpt(nn.Module):
    """A decoder of characters, as small as can be."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.place = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of what comes next: (samples, classes, places)."""
        inside = self.token(tokens) + self.place
        out = self.head(self.blocks(inside, mask=self.mask, is_causal=True))
        return torch.as_tensor(out).transpose(1, 2)


def _new_gpt(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return TinyGpt()


def _digits() -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's digits: 1,437 to train with, 360 held out."""
    # Where they are needed: importing them changes the environment.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped] # noqa: PLC0415
    from sklearn.model_selection import (  # type: ignore[import-untyped] # noqa: PLC0415
        train_test_split,
    )

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    return TensorDataset(parts[0], parts[2]), TensorDataset(parts[1], parts[3])


def _source_text() -> tuple[TensorDataset, TensorDataset]:
    """The standard library's modules, byte by byte; the last tenth of them is held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    cut = len(files) * 9 // 10

    def windows(of: list[Path]) -> tuple[torch.Tensor, torch.Tensor]:
        text = bytearray(b"".join(file.read_bytes() for file in of))
        tokens = torch.frombuffer(text, dtype=torch.uint8).long()
        num = (len(tokens) - 1) // CONTEXT
        inputs = tokens[: num * CONTEXT].view(num, CONTEXT)
        return inputs, tokens[1 : num * CONTEXT + 1].view(num, CONTEXT)

    x, y = windows(files[cut:])
    every = max(1, len(x) // HELD_OUT_WINDOWS)
    return TensorDataset(*windows(files[:cut])), TensorDataset(x[::every], y[::every])


def _adamw(lr: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


Task = tuple[
    Callable[[], tuple[TensorDataset, TensorDataset]],
    Callable[[int], nn.Module],
    Callable[[nn.Module], torch.optim.Optimizer],
]
TASKS: dict[str, Task] = {
    "digits CNN, AdamW": (_digits, new_cnn, _adamw(0.005)),
    "digits CNN, SGD with momentum": (_digits, new_cnn, _momentum),
    "tiny GPT on Python's source, AdamW": (_source_text, _new_gpt, _adamw(0.003)),
}


def _train(job: Job, options: dict[str, Any], *, seed: int, order_seed: int) -> dict[str, Any]:
    """One training from its first to its last step.

    Returns:
        Mean loss over the held-out set, mean training loss of the last tenth of the steps, and why
        the divergence guard ended the staleness, empty if it did not.
    """
    load, make_model, make_optimizer = TASKS[job.task]
    dataset, held_out = load()
    model = make_model(seed)
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=job.num_steps)
    order = torch.Generator().manual_seed(order_seed)
    picked = torch.randint(len(dataset), (job.num_steps * job.batch_size,), generator=order)
    loader = DataLoader(TensorDataset(*dataset[picked]), job.batch_size)
    trainer = hetero_hvd.Trainer(
        model, optimizer, loader, scheduler=schedule, scheduler_interval="step", **options
    )
    losses, found = [], {}
    for _ in trainer.epochs(1):
        for x, y in trainer.batches():
            losses.append(trainer.step(lambda x, y: cross_entropy(model(x), y), x, y))
        found = trainer.evaluate(
            lambda x, y: {"loss": cross_entropy(model(x), y)}, DataLoader(held_out, 64)
        )
    last = losses[-max(1, len(losses) // 10) :]
    reason = trainer._mode.staleness.reason  # noqa: SLF001 - told to the driver, which is not there
    return {"held_out": found["loss"], "training": sum(last) / len(last), "ended": reason}


def main() -> None:
    """Train every variant with every seed; the first worker writes what came out."""
    folder = Path(sys.argv[1])
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
    torch.set_num_threads(1)
    found = []
    for seed in job.seeds:
        for name, (options, other_order) in job.variants.items():
            order_seed = 1000 * other_order + seed
            result = _train(job, options, seed=seed, order_seed=order_seed)
            found.append({"variant": name, "seed": seed} | result)
    if hetero_hvd.init().collective.rank == 0:
        (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
