"""A training on an emulated device, in which a part of the steps takes longer when it is told to.

Usage, under `hetero-hvd run`: python -m benchmarks.causes.drawn_script JSON, the fields of
`Script`.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, default_collate

import hetero_hvd
from benchmarks.causes.drawn import PERIOD_STEPS, PERIODIC
from hetero_hvd.worker.session.launch_settings import read_launch_settings

LINE_SECONDS, HELD_OUT = 0.002, 300


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train, and what goes wrong.

    Attributes:
        global_batch_size: Samples per step.
        seconds_per_sample: Node to what its device takes.
        overhead_seconds: Of each step.
        faults: Node to kind (see `drawn_causes.KINDS`) to seconds more per step.
        mark: File; the faults last as long as it is there.
    """

    global_batch_size: int
    seconds_per_sample: dict[str, float]
    overhead_seconds: float
    faults: dict[str, dict[str, float]]
    mark: str


class Faults:
    """What goes wrong on this worker."""

    def __init__(self, script: Script) -> None:
        self._seconds = script.faults.get(read_launch_settings().worker.node, {})
        self._mark = Path(script.mark)
        self._numbers = dict.fromkeys(self._seconds, 0)

    def seconds(self, kind: str) -> float:
        """So much longer takes it this time."""
        if kind not in self._seconds or not self._mark.exists():
            return 0.0
        self._numbers[kind] += 1
        if kind not in PERIODIC:
            return self._seconds[kind]
        if kind == "evaluation":  # there is one in each period
            return PERIOD_STEPS * self._seconds[kind]
        return PERIOD_STEPS * self._seconds[kind] * (self._numbers[kind] % PERIOD_STEPS == 0)

    def sleep(self, *kinds: str) -> None:
        """In this place of a step."""
        for kind in kinds:
            time.sleep(self.seconds(kind))

    def print(self, kind: str) -> None:
        """Line by line."""
        until = time.perf_counter() + self.seconds(kind)
        while time.perf_counter() < until:
            print("a line of the log")  # noqa: T201 - is what it is about
            time.sleep(LINE_SECONDS)

    def read(self, kind: str, file: Path) -> None:
        """A file, again and again."""
        until = time.perf_counter() + self.seconds(kind)
        while time.perf_counter() < until:
            file.read_bytes()
            time.sleep(LINE_SECONDS)

    def collect(self, place: int, step: int) -> None:
        """Garbage, in another place of each step; a finalizer makes it take as long as wanted."""
        if step % 3 == place and (seconds := 3 * self.seconds("garbage")):
            _Slow(seconds)
            gc.collect(0)


class _Slow:
    """Garbage that is slow to collect."""

    def __init__(self, seconds: float) -> None:
        # a cycle, so that it takes a collection
        self._seconds = seconds
        self._self = self

    def __del__(self) -> None:
        time.sleep(self._seconds)


def _samples(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 16), torch.zeros(count, dtype=torch.long))


def main() -> None:
    """Train until the end of time."""
    torch.set_num_threads(1)
    script = msgspec.json.decode(sys.argv[1], type=Script)
    faults, node = Faults(script), read_launch_settings().worker.node
    sample_file = Path(script.mark).with_name(f"samples-{node}")
    sample_file.write_bytes(os.urandom(2**16))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: faults.sleep("optimizer"))
    step = 0

    def collate(samples: list[Any]) -> Any:  # noqa: ANN401 - as PyTorch's own
        faults.sleep("data", "data-tenth")
        faults.read("disk", sample_file)
        faults.collect(0, step)
        return default_collate(samples)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        value = cross_entropy(model(x), y)
        own = script.overhead_seconds + script.seconds_per_sample[node] * len(x)
        time.sleep(max(0.0, began + own - time.perf_counter()))
        faults.sleep("device")
        faults.print("loss")
        faults.collect(1, step)
        return value

    def metrics(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        faults.sleep("evaluation")
        return {"loss": cross_entropy(model(x), y)}

    batch = script.global_batch_size
    loader = DataLoader(_samples(50 * batch), batch_size=batch, collate_fn=collate)
    held_out = DataLoader(_samples(HELD_OUT), batch_size=HELD_OUT)
    trainer = hetero_hvd.Trainer(model, optimizer, loader)
    for _ in trainer.epochs(1_000_000):
        for x, y in trainer.batches():
            trainer.step(loss, x, y)
            step += 1
            faults.sleep("sleep", "validation")
            faults.print("print")
            faults.collect(2, step)
            if trainer.applied_steps % PERIOD_STEPS == 0:
                trainer.evaluate(metrics, held_out)


if __name__ == "__main__":
    main()
