"""Small tar files of samples, as WebDataset has them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path


def write_shards(folder: Path, sizes: Sequence[int]) -> None:
    """Write shards whose samples are numbered through.

    Args:
        folder: Gets `shard-0.tar`, `shard-1.tar`, ...
        sizes: Samples in each.
    """
    folder.mkdir(exist_ok=True)
    numbers = count()
    for shard, size in enumerate(sizes):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as files:
            for _ in range(size):
                number = next(numbers)
                for extension, content in (
                    ("bin", bytes([number % 256]) * (600 + 10 * number)),
                    ("cls", str(number).encode()),
                ):
                    member = tarfile.TarInfo(f"train/sample-{number:05}.{extension}")
                    member.size = len(content)
                    files.addfile(member, io.BytesIO(content))
