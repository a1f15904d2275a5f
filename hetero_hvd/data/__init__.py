"""Data sets over any URL that fsspec reads: the same on all nodes, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_hvd.probes.training_packages import imported_when_asked

if TYPE_CHECKING:
    from hetero_hvd.data.image_folder import ImageFolder
    from hetero_hvd.data.shards import BlockShuffle, TarShards, write_index
    from hetero_hvd.data.source import Source
    from hetero_hvd.data.streams.stream_shards import StreamShards
    from hetero_hvd.data.tables import TextTable, glue
    from hetero_hvd.data.text_blocks import ByteTokenizer, TextBlocks

_HOMES = {
    "BlockShuffle": "hetero_hvd.data.shards",
    "ByteTokenizer": "hetero_hvd.data.text_blocks",
    "TextTable": "hetero_hvd.data.tables",
    "ImageFolder": "hetero_hvd.data.image_folder",
    "Source": "hetero_hvd.data.source",
    "StreamShards": "hetero_hvd.data.streams.stream_shards",
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
    "StreamShards",
    "TarShards",
    "TextBlocks",
    "TextTable",
    "glue",
    "write_index",
]

__getattr__ = imported_when_asked(__name__, _HOMES)
