"""Data sets over any URL that fsspec reads: the same on all nodes, or refused."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hetero_hvd.probes.training_packages import require_training

if TYPE_CHECKING:
    from hetero_hvd.data.image_folder import ImageFolder
    from hetero_hvd.data.shards import BlockShuffle, TarShards, write_index
    from hetero_hvd.data.source import Source
    from hetero_hvd.data.tables import TextTable, glue
    from hetero_hvd.data.text_blocks import ByteTokenizer, TextBlocks

_HOMES = {
    "BlockShuffle": "hetero_hvd.data.shards",
    "ByteTokenizer": "hetero_hvd.data.text_blocks",
    "TextTable": "hetero_hvd.data.tables",
    "ImageFolder": "hetero_hvd.data.image_folder",
    "Source": "hetero_hvd.data.source",
    "TarShards": "hetero_hvd.data.shards",
    "TextBlocks": "hetero_hvd.data.text_blocks",
    "glue": "hetero_hvd.data.tables",
    "write_index": "hetero_hvd.data.shards",
}
__all__ = [
    "BlockShuffle",
    "ByteTokenizer",
    "ImageFolder",
    "Source",
    "TarShards",
    "TextBlocks",
    "TextTable",
    "glue",
    "write_index",
]


def __getattr__(name: str) -> object:
    """Import what needs torch only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hetero_hvd.data' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        found = error
    require_training(f"hetero_hvd.data.{name}")
    raise found
