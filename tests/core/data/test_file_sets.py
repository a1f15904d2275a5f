"""Workers with other files are found, and the file that differs is named among thousands."""

import msgspec
import numpy as np
import pytest

from hetero_hvd.core.data.file_sets import CELL_BYTES, NUM_CELLS, FileFacts, differing, file_set
from hetero_hvd.messages import WorkerId

ALPHA, BETA, GAMMA = (WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))
FILES = sorted(FileFacts(f"class-{n % 7}/image-{n:05}.jpeg", 100 + n) for n in range(5000))
LONG = "a-long-way/" * 20 + "é-the-end.jpeg"


def changed(*, without=(), more=(), sizes=(), tags=()):
    """The files, but for some."""
    found = {file.name: file for file in FILES}
    for name in without:
        del found[name]
    found |= {name: FileFacts(name, 1) for name in more}
    found |= {name: found[name]._replace(size=size) for name, size in sizes}
    found |= {name: found[name]._replace(tag=tag) for name, tag in tags}
    return sorted(found.values())


CASES = {
    "one is missing": (
        {"without": [FILES[7].name]},
        f"{FILES[7].name} is missing (4999 files, ",
    ),
    "one too many": ({"more": ["class-3/new.jpeg"]}, "class-3/new.jpeg is one too many (5001 fi"),
    "one has another size": (
        {"sizes": [(FILES[9].name, 5)]},
        f"{FILES[9].name} has 5 bytes instead of {FILES[9].size} bytes (5000 ",
    ),
    "several": (
        {"without": [FILES[3].name, FILES[4].name], "more": ["x.jpeg"]},
        f"{FILES[3].name} is missing, and 2 more differ (4999 files, ",
    ),
    "a long name": ({"more": [LONG]}, "…"),
    "more than the sketch can tell": (
        {"without": [file.name for file in FILES[:900]]},
        "images: 4100 files, ",
    ),
    "contents alone": (
        {"tags": [(FILES[5].name, "md5:other")]},
        f"{FILES[5].name} has other contents (5000 files, ",
    ),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("change", "words"), CASES.values(), ids=CASES.keys())
def test_what_differs_first_is_named(change, words):
    """Who differs from most is told, with the amounts and digests on both sides."""
    store = "s3://bucket"
    tagged = [file._replace(tag="md5:one") for file in FILES]
    other = [file._replace(tag=file.tag or "md5:one") for file in changed(**change)]
    good, bad = file_set("images", tagged, store=store), file_set("images", other, store=store)
    found = differing({ALPHA: (good,), BETA: (bad,), GAMMA: (good,)})
    if words is None:
        assert found == {}
        return
    assert found.keys() == {BETA}
    assert found[BETA].startswith("its data differ from those of alpha:0: images: ")
    assert words in found[BETA]
    assert f"there 5000 files, {sum(file.size for file in FILES)} bytes, " in found[BETA]
    assert LONG[-80:] in found[BETA] if "…" in words else True


def test_a_few_files_that_differ_are_told_apart_whatever_they_are():
    """Every time, and at once: what several files look like together is taken for none."""
    rng = np.random.default_rng(1)
    mine, num_told = file_set("images", FILES[:20]), 0
    for number in range(120):
        other = list(FILES[:20])
        for at in rng.choice(20, 1 + number % 8, replace=False):
            other[at] = FileFacts(f"shard {rng.integers(1000)}", int(rng.integers(50)))
        num_names = len({file.name for file in {*FILES[:20]} ^ {*other}})
        words = differing({ALPHA: (mine,), BETA: (file_set("images", other),)})[BETA]
        is_told = f", and {num_names - 1} more differ (20 files, " in words
        assert is_told or "images: 20 files" in words
        num_told += is_told
    assert num_told > 90


def test_who_is_right_is_who_is_in_the_majority_or_the_first():
    """Of equally many the earlier one counts; a newcomer is judged by those who are there."""
    one, other = (file_set("images", FILES[:n]) for n in (5, 6))
    assert differing({ALPHA: (one,), BETA: (other,), GAMMA: (other,)}).keys() == {ALPHA}
    assert differing({ALPHA: (one,), BETA: (other,)}).keys() == {BETA}
    assert differing({BETA: (other,)}, {ALPHA: (one,), GAMMA: (one,)}).keys() == {BETA}
    assert differing({BETA: (other,)}, {}) == {}


def test_stores_that_say_something_else_of_equal_contents_are_no_difference():
    """A copy on a disk has no tags, another bucket has its own; names and sizes count."""
    near = file_set("images", FILES)
    here, there = (
        file_set("images", [f._replace(tag=f"etag:{s}") for f in FILES], store=s) for s in "ab"
    )
    assert differing({ALPHA: (near,), BETA: (here,), GAMMA: (there,)}) == {}


def test_another_number_of_sets_is_a_difference():
    """A script that opens more here than elsewhere is another one."""
    one = file_set("images", FILES[:3])
    found = differing({ALPHA: (one,), BETA: (one, one), GAMMA: (one,)})
    assert "it opens 2 sets of files, where the others open 1" in found[BETA]


def test_the_sketch_is_small_and_one_of_another_make_is_not_read():
    """Whatever the number of files; then amounts and digests are told."""
    found = file_set("images", FILES)
    assert len(found.sketch) == NUM_CELLS * CELL_BYTES < 4096
    other = file_set("images", FILES[1:])
    one = file_set("images", FILES[:1]).sketch
    cell = next(at for at in range(0, len(one), CELL_BYTES) if any(one[at : at + CELL_BYTES]))
    alone = bytearray(file_set("images", FILES).sketch)
    alone[cell : cell + CELL_BYTES] = bytes(CELL_BYTES)
    for sketch in (b"", bytes(alone)):
        bad = msgspec.structs.replace(other, sketch=sketch)
        assert "images: 4999 files" in differing({ALPHA: (found,), BETA: (bad,)})[BETA]
