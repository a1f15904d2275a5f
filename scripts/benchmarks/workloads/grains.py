"""Trains models in the reproducible mode and without: `… FOLDER` with its job.json."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

VOCABULARY, LENGTH, WIDTH, NUM_LAYERS = 256, 64, 128, 4
CHANNELS = (16, 32, 64)


def new_model(seed: int = 0) -> nn.Module:
    """A small network for the digits."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class _Gpt(nn.Module):
    """A decoder of 4 layers on 64 tokens: 0.9 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 50)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, NUM_LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next token, with classes in dimension 1."""
        hidden = self.layers(self.tokens(x) + self.places, mask=self.mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Two convolutions with normalisation, and a way past them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.past = nn.Conv2d(before, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Their sum."""
        return torch.relu(self.inner(x) + self.past(x))


def _new_resnet() -> nn.Module:
    """Six blocks in three stages, on images of 32 x 32."""
    stages, before = [], 3
    for number, channels in enumerate(CHANNELS):
        stages += [_Block(before, channels, 1 + (number > 0)), _Block(channels, channels, 1)]
        before = channels
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def _images(channels: int, side: int, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, channels, side, side, generator=generator)
    return TensorDataset(x, torch.randint(10, (count,), generator=generator))


def _texts(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (count, LENGTH + 1), generator=generator)
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


TASKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], TensorDataset]]] = {
    "digits": (new_model, partial(_images, 1, 8)),
    "gpt": (_Gpt, _texts),
    "resnet": (_new_resnet, partial(_images, 3, 32)),
}
"""Name to model, and to data of a number of samples."""


def _step_seconds(task: str, options: dict[str, Any], asked: dict[str, int]) -> float:
    """Median over the steps of two epochs, the first one left out; of this worker."""
    torch.use_deterministic_algorithms(False)  # the mode switches them on
    torch.manual_seed(0)
    new, data = TASKS[task]
    model = new()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    dataset = data(asked["num_samples"])
    loader = DataLoader(dataset, asked["batch_size"], shuffle=True, drop_last=True)
    trainer = hetero_hvd.Trainer(model, optimizer, loader, **options)
    seconds = []
    for _ in trainer.epochs(2):
        began = time.perf_counter()
        for inputs, labels in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), inputs, labels)
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    return median(seconds[1:])


def main() -> None:
    """Train all variants of all tasks in turn."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task, asked in job.items():
        for _ in range(asked["num_rounds"]):
            for name, options in asked["variants"].items():
                found[task][name].append(_step_seconds(task, options, asked))
    if hetero_hvd.init().collective.rank == 0:
        (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
