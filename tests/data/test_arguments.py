"""Whatever a script gives to a data set by mistake is refused in one line that names it."""

import io
import math
import re
import tarfile

import numpy as np
import pytest

from hetero_hvd.data import (
    BlockShuffle,
    ImageFolder,
    Source,
    TarShards,
    TextBlocks,
    TextTable,
    glue,
    write_index,
)
from hetero_hvd.data.arguments import SHOWN_LETTERS, shown
from hetero_hvd.errors import UserError
from tests.kit.data.images import write_images
from tests.kit.data.shards import write_shards


class Thing:
    """What no argument is."""


GIVEN = {
    "None": None,
    "a number": 7,
    "0": 0,
    "a negative one": -1,
    "half a one": 1.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "a huge one": 10**5000,
    "True": True,
    "a text": "x",
    "an empty one": "",
    "a blank one": "  ",
    "bytes": b"x",
    "an empty list": [],
    "a list of a number": [1],
    "a list of an empty text": [""],
    "a list of a text twice": ["a", "a"],
    "an empty dict": {},
    "a dict of a number": {1: 1},
    "a dict of None": {"text": None},
    "a thing": Thing(),
    "the class of a thing": Thing,
}
CALLED = {"None", "the class of a thing"}
"""A function, or none."""

ALWAYS = {
    "storage_options": {"None", "an empty dict", "a dict of None"},
    "cache_bytes": {"a number", "0", "half a one"},
    "cache_folder": {"None", "a text"},
    "attempts": {"a number"},
    "timeout_seconds": {"a number", "half a one"},
}
"""Argument of each data set to what it may be of these."""


def tables(folder, **given):
    """A table of one row."""
    (folder / "x.csv").write_text("text,label\na,1\n")
    return TextTable(**{"url": folder / "x.csv", "texts": {"text": "text"}} | given)


def tasks(folder, **given):
    """One of GLUE."""
    (folder / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    return glue(**{"url": folder, "task": "sst2"} | given)


def blocks(folder, **given):
    """A text."""
    (folder / "x.txt").write_text("a longer text")
    return TextBlocks(**{"url": folder, "block_size": 1} | given)


def images(folder, **given):
    """An image."""
    write_images(folder / "images", ("cat",), each=1)
    return ImageFolder(**{"url": folder / "images"} | given)


def shards(folder, **given):
    """A shard."""
    write_shards(folder / "shards", [1])
    return TarShards(**{"url": folder / "shards"} | given)


def indices(folder, **given):
    """The index of a shard."""
    write_shards(folder / "shards", [1])
    return write_index(**{"url": folder / "shards"} | given)


def shuffles(_, **given):
    """An order."""
    return BlockShuffle(**{"dataset": range(3)} | given)


def finds(folder, *, url=None, suffixes=(), **given):
    """A listing."""
    (folder / "f").write_text("x")
    return Source(folder if url is None else url, **given).find(suffixes)


TAKES = {
    tables: {
        "url": set(),
        "texts": set(),
        "label": {"None"},
        "labels": {"an empty list"},
        "is_score": {"True"},
        "has_header": {"True"},
        "transform": CALLED,
    },
    tasks: {"url": set(), "task": set(), "split": set(), "transform": CALLED},
    blocks: {
        "url": set(),
        "block_size": {"a number"},
        "tokenizer": {"None"},
        "separator": {"None", "a number", "0"},
        "suffixes": {"an empty list"},
    },
    images: {"url": set(), "transform": CALLED},
    shards: {"url": set(), "decode": CALLED},
    indices: {"url": set()},
    finds: {"url": {"None"}, "suffixes": {"an empty list"}},
    shuffles: {
        "dataset": {
            *("an empty list", "a list of a number", "a list of an empty text"),
            *("a list of a text twice", "an empty dict", "a dict of a number", "a dict of None"),
        },
        "block_size": {"a number"},
    },
}
CASES = [
    (call, name, {*right, *ALWAYS.get(name, ())})
    for call, takes in TAKES.items()
    for name, right in (takes if call is shuffles else dict.fromkeys(ALWAYS, ()) | takes).items()
]


@pytest.mark.parametrize(
    ("call", "name", "right"), CASES, ids=[f"{call.__name__}-{name}" for call, name, _ in CASES]
)
def test_what_is_given_by_mistake_is_one_line(tmp_path, monkeypatch, call, name, right):
    """Of each argument all that it cannot be; what it can be is taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for kind, value in GIVEN.items():
        if kind in right:
            call(tmp_path, **{name: value})
            continue
        with pytest.raises(UserError) as found:
            call(tmp_path, **{name: value})
        line = str(found.value)
        assert "\n" not in line, kind
        assert re.search("must be |not found|no column|column 8 is used", line), (kind, line)
        assert len(line) < 400, kind


def test_a_number_may_be_numpys(tmp_path):
    """As a count that was computed is."""
    found = blocks(tmp_path, block_size=np.int64(2), separator=np.int32(0), attempts=np.int8(3))
    assert len(found) == 6
    assert len(BlockShuffle(range(4), np.int64(3))) == 4
    assert tables(tmp_path, timeout_seconds=np.float32(2), has_header=True)[0]["label"] == 1


SUFFIXES = {
    "a list": ([".LOG"], ["x.log"]),
    "a tuple": ((".log", ".txt"), ["x.TXT", "x.log"]),
    "one that is generated": ((suffix for suffix in (".txt",)), ["x.TXT"]),
    "none": ((), ["f", "x.TXT", "x.log"]),
}


@pytest.mark.parametrize(("suffixes", "names"), SUFFIXES.values(), ids=SUFFIXES.keys())
def test_suffixes_are_whole_and_of_any_case(tmp_path, suffixes, names):
    """A text that is given for a list of them is not taken apart."""
    for name in ("x.log", "x.TXT"):
        (tmp_path / name).write_text("x")
    assert [file.name for file in finds(tmp_path, suffixes=suffixes).files] == names
    with pytest.raises(UserError, match=r"suffixes: '\.txt': must be a list of texts"):
        finds(tmp_path, suffixes=".txt")


def test_what_is_given_is_shown_shortly_and_without_secrets():
    """In one line, whatever it is."""
    assert shown({"token": "abcdefghij"}) == "{'token': '(hidden)'}"
    assert shown(["s3://me:pass-word@host/x"]) == "['s3://me:(hidden)@host/x']"
    assert shown("a\nb") == r"'a\nb'"
    assert shown(Thing()) == "a Thing"
    assert shown(Thing) == "the class Thing"
    assert shown(io.BytesIO()) == "a BytesIO"
    assert shown(OSError) == "the class OSError"
    assert shown(tarfile.TarInfo()) == "a TarInfo"
    assert len(shown("x" * 1000)) == SHOWN_LETTERS + 1
