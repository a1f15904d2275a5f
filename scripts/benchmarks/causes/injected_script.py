"""A training that goes on until it is ended, and whose node slows down when it is told to.

Usage, under `hetero-hvd run`: python -m benchmarks.causes.injected_script JSON, the fields of
`Script`.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, default_collate

import hetero_hvd
from hetero_hvd.worker.session.launch_settings import read_launch_settings

SAMPLE_BYTES, READS_PER_BATCH = 64 * 2**10, 8


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train, and what goes wrong.

    Attributes:
        global_batch_size: Samples per step.
        width: Of the two hidden layers: what a step costs where the compute is real.
        node: The node that slows down.
        kind: `data`: its loader waits; `compute`: its emulated compute takes longer; `memory`: its
            samples are in a file, for others to take the memory from; else nothing that this
            script does.
        ratio: So many times as long.
        data_seconds_per_sample: What its loader waits then.
        mark: File whose existence begins it.
        file_bytes: Size of the file of samples.
    """

    global_batch_size: int
    width: int
    node: str
    kind: str
    ratio: float
    data_seconds_per_sample: float
    mark: str
    file_bytes: int


class Fault:
    """Whether it has begun on this worker, and what it does to the loader."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._settings = read_launch_settings()
        self.has_begun = False
        is_guilty = self._settings.worker.node == script.node
        self._file = _sample_file(script) if script.kind == "memory" and is_guilty else None

    def begins(self) -> bool:
        """True once, on the guilty node, when the mark is there."""
        if self.has_begun or self._settings.worker.node != self._script.node:
            return False
        self.has_begun = Path(self._script.mark).exists()
        return self.has_begun

    def collate(self, samples: list[Any]) -> Any:  # noqa: ANN401 - as PyTorch's own
        """Put a batch together, slowly if that is the fault."""
        if self.has_begun and self._script.kind == "data":
            time.sleep(self._script.data_seconds_per_sample * len(samples))
        if self._file is not None:
            for _ in range(READS_PER_BATCH):
                at = random.randrange(len(self._file) // SAMPLE_BYTES) * SAMPLE_BYTES  # noqa: S311
                zlib.crc32(self._file[at : at + SAMPLE_BYTES])
        return default_collate(samples)


def _sample_file(script: Script) -> mmap.mmap:
    """A file that fits into the host's memory, read as it is mapped."""
    path = Path(script.mark).with_name("samples")
    with path.open("wb") as file:
        for _ in range(script.file_bytes // SAMPLE_BYTES):
            file.write(os.urandom(SAMPLE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    script = msgspec.json.decode(sys.argv[1], type=Script)
    fault = Fault(script)
    torch.manual_seed(0)
    samples = 50 * script.global_batch_size
    data = TensorDataset(torch.randn(samples, 16), torch.randint(0, 4, (samples,)))
    width = script.width
    model = nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )
    loader = DataLoader(data, batch_size=script.global_batch_size, collate_fn=fault.collate)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = hetero_hvd.Trainer(model, optimizer, loader)
    gc.freeze()  # to search all of torch for cycles takes a small quota longer than a step
    for _ in trainer.epochs(1_000_000):
        for x, y in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
            if fault.begins() and script.kind == "compute":
                emulation = trainer._step.passes.emulation  # noqa: SLF001 - a fault, injected
                assert emulation is not None  # noqa: S101 - or there is no fault
                emulation.slow_down(script.ratio)


if __name__ == "__main__":
    main()
