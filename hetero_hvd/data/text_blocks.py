"""Text files as blocks of tokens of equal length, for language models."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from hetero_hvd.core.data.file_sets import FileFacts
from hetero_hvd.data import arguments
from hetero_hvd.data.source import Source
from hetero_hvd.errors import MalformedDataError, UserError

SUFFIXES = (".txt", ".text", ".md")
TOKEN_TYPE = np.int32
MOST_TOKEN = int(np.iinfo(TOKEN_TYPE).max)


class ByteTokenizer:
    """A text's bytes in UTF-8 as its tokens; needs no vocabulary.

    Attributes:
        vocab_size: Tokens that there are, with the separator.
        separator: Token that no text has.
    """

    vocab_size, separator = 257, 256

    def __call__(self, text: str) -> Sequence[int]:
        """The tokens of a text."""
        return list(text.encode())


class TextBlocks(Dataset[torch.Tensor]):
    """All texts of a place as one row of tokens, cut into blocks.

    The files are read and cut into tokens when the data set is made, in the order of their names;
    what the last block lacks is left out. The tokens are held in memory, 4 bytes each, and shared
    with forked loader processes. They are compared among the workers, so that another version of
    a tokenizer on one node is found.

    Args:
        url: Of a file, or of a folder of files; see `Source`.
        block_size: Tokens in a block, >= 1. A model that predicts the next token wants one more
            than it sees.
        tokenizer: Gives a text's tokens, whole numbers >= 0; or has a method `encode` that does.
            None: `ByteTokenizer`.
        separator: Token between two files, >= 0; None: none.
        suffixes: Of the names of the files in a folder, whatever their case; empty: all files.
        source: Further arguments of `Source`.

    Raises:
        UserError: There is no text, or less than a block.
        MalformedDataError: A file is no text in UTF-8, or a token is none.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        block_size: int,
        tokenizer: Any = None,  # noqa: ANN401 - a function, or an object of some library
        *,
        separator: int | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        **source: Any,  # noqa: ANN401 - each has its type there
    ) -> None:
        self.source = Source(url, **source)
        where = f"text at {self.source.shown}"
        self.block_size = arguments.whole_number(block_size, where, "block_size", least=1)
        if separator is not None:
            separator = arguments.whole_number(
                separator, where, "separator", least=0, most=MOST_TOKEN
            )
        encode = _encoding(tokenizer, where)
        files = self.source.find(suffixes).files
        parts = []
        for number, file in enumerate(files):
            if number and separator is not None:
                parts.append(np.array([separator], TOKEN_TYPE))
            parts.append(self._tokens(file, encode))
        self._all = np.concatenate(parts)
        if len(self) == 0:
            raise UserError(
                f"{where}: {len(self._all)} tokens are less than one block of {self.block_size}"
            )
        self.source.announce("text at", files)
        checksum = FileFacts(f"checksum {zlib.crc32(self._all.tobytes()):08x}", self._all.nbytes)
        self.source.announce("tokens of the text at", [checksum])

    def __len__(self) -> int:
        return len(self._all) // self.block_size

    def __getitem__(self, index: int) -> torch.Tensor:
        """A block: int64, shape [block_size]."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        start = index % len(self) * self.block_size
        block = self._all[start : start + self.block_size]
        return torch.from_numpy(block.astype(np.int64))

    def _tokens(self, file: FileFacts, encode: Callable[[str], Sequence[int]]) -> NDArray[np.int32]:
        place = self.source.place(file.name)
        try:
            text = self.source.read(file).decode()
        except UnicodeDecodeError as error:
            raise MalformedDataError(f"{place}: is no text in UTF-8: byte {error.start}") from error
        with self.source.meter.timing("decode_seconds"):
            found = encode(text)
            return _as_tokens(found, place)


def _as_tokens(found: Any, place: str) -> NDArray[np.int32]:  # noqa: ANN401 - a script's own
    """Tokens as an array.

    Raises:
        MalformedDataError: They are none.
    """
    try:
        tokens = np.asarray(found) if len(found) else np.zeros(0, TOKEN_TYPE)
    except (TypeError, ValueError):
        tokens = np.array("none")
    is_whole = tokens.dtype.kind in "iu" and tokens.ndim == 1
    if not is_whole or (tokens < 0).any() or (tokens > MOST_TOKEN).any():
        raise MalformedDataError(
            f"{place}: the tokenizer must give a list of whole numbers from 0 to 2**31 - 1"
        )
    return tokens.astype(TOKEN_TYPE)


def _encoding(tokenizer: Any, where: str) -> Callable[[str], Sequence[int]]:  # noqa: ANN401 - see there
    """What gives tokens.

    Raises:
        UserError: Nothing does.
    """
    if tokenizer is None:
        return ByteTokenizer()
    is_one = not isinstance(tokenizer, type | str)  # such as the name of one, or its class
    if is_one and hasattr(tokenizer, "encode"):
        encode = tokenizer.encode
        return lambda text: (found := encode(text)) and getattr(found, "ids", found)
    if is_one and callable(tokenizer):
        return tokenizer  # type: ignore[no-any-return]
    wanted = "a function that gives a text's tokens, or have a method encode that does"
    raise arguments.refused(where, "tokenizer", tokenizer, wanted)
