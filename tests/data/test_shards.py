"""Samples of shards have places: each is read once, by whoever needs it, and nothing else is."""

import io
import json
import tarfile

import numpy as np
import pytest
from torch.utils.data import DataLoader

from hetero_hvd.data import BlockShuffle, Source, TarShards, write_index
from hetero_hvd.data.read_meter import take_readings
from hetero_hvd.errors import MalformedDataError, UserError
from tests.kit.data.shards import write_shards

LONG = "folder/" * 30


def numbers(dataset, indices=None):
    """The number that each sample holds."""
    found = dataset.__getitems__(list(range(len(dataset)) if indices is None else indices))
    return [int(sample["cls"]) for sample in found]


@pytest.fixture
def shards(tmp_path):
    """A folder with 3 shards of 5, 1 and 6 samples, which are numbered through."""
    write_shards(tmp_path / "shards", [5, 1, 6])
    return tmp_path / "shards"


def test_samples_are_numbered_through_and_read_alone_or_together(shards):
    """In any order, across shards; files of a sample are known by the rest of their names."""
    found = TarShards(shards)
    assert numbers(found) == list(range(12))
    assert numbers(found, [11, 4, 5, 6, 0, 0]) == [11, 4, 5, 6, 0, 0]
    assert found[7]["__key__"] == "train/sample-00007"
    assert found[-1].keys() == {"__key__", "cls", "bin"}
    with pytest.raises(IndexError):
        found[12]
    loader = DataLoader(
        TarShards(shards, decode=lambda sample: int(sample["cls"])),
        batch_size=5,
        sampler=BlockShuffle(found, 2),
        num_workers=1,
        multiprocessing_context="fork",
    )
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(12))


def test_only_what_is_needed_is_read(shards):
    """Parts of each batch by three workers, whose shares change: each byte once, in all."""
    size = sum(path.stat().st_size for path in shards.iterdir())
    workers = [TarShards(shards) for _ in range(3)]
    take_readings()
    order = list(BlockShuffle(workers[0], 4))
    found = []
    for step, start in enumerate(range(0, 12, 6)):
        batch = order[start : start + 6]
        for rank, (first, last) in enumerate([(0, 1), (1, 3), (3, 6)]):
            found += numbers(workers[(rank + step) % 3], batch[first:last])
    assert sorted(found) == list(range(12))
    read = sum(reading.num_bytes for reading in take_readings().values())
    trailers = 3 * 2 * tarfile.BLOCKSIZE
    assert size - 3 * tarfile.RECORDSIZE <= read <= size - trailers


@pytest.mark.parametrize("name", ["s3", "memory"])
def test_elsewhere_an_index_tells_the_places(rigs, shards, name):
    """It is made once; without one, or with another shard's, a shard is refused in one line."""
    rig = rigs(name)
    rig.fill({f"shards/{path.name}": path.read_bytes() for path in shards.iterdir()})
    url = f"{rig.url}/shards"
    if name == "s3":
        with pytest.raises(UserError, match=r"0\.tar: cannot be positioned: there is no .*index"):
            TarShards(url)
    assert write_index(url, cache_bytes=0) == 3
    assert write_index(url, cache_bytes=0) == 0
    found = TarShards(url, cache_bytes=0)
    take_readings()
    assert numbers(found) == list(range(12))
    assert numbers(TarShards(url)) == list(range(12))
    rig.put("shards/shard-1.tar", (shards / "shard-0.tar").read_bytes() + bytes(512))
    with pytest.raises(MalformedDataError, match=r"1\.tar\.index: is of a shard of \d+ bytes"):
        TarShards(url)


@pytest.mark.parametrize("name", ["s3", "memory", "path", "http link"])
def test_one_shard_has_its_index_beside_it(rigs, shards, name):
    """Wherever it is: `write_index` puts it there, also for the link that a store has signed."""
    folder = f"one {name}".replace(" ", "-")
    rig = rigs(name if name != "http link" else "s3")
    rig.fill({f"{folder}/{path.name}": path.read_bytes() for path in shards.glob("shard-0.*")})
    url = f"{rig.url}/{folder}/shard-0.tar"
    if name in ("s3", "http link"):
        with pytest.raises(UserError, match=r"0\.tar: cannot be positioned: there is no .*index"):
            TarShards(url, cache_bytes=0)
    assert write_index(url) == 1
    assert write_index(url) == 0
    assert write_index(f"{rig.url}/{folder}") == 0
    if name == "http link":
        url = f"{rig.proxy.url}/{url.removeprefix('s3://')}?X-Amz-Signature=abc&X-Amz-Date=1"
    found = TarShards(url, cache_bytes=0)
    assert numbers(found) == list(range(5))
    assert found.source.shown == url.partition("?")[0]
    rig.fill({f"{folder}/shard-0.tar.index": b'{"num_bytes": 1, "ends": [0, 1]}'})
    if name in ("s3", "http link"):
        with pytest.raises(MalformedDataError, match=r"0\.tar\.index: is of a shard of 1 bytes"):
            TarShards(url, cache_bytes=0)


def test_a_server_without_ranges_is_refused(rigs, shards):
    """Each worker would read each shard as a whole."""
    rig = rigs("http")
    write_index(shards)
    rig.fill({f"shards/{path.name}": path.read_bytes() for path in shards.iterdir()})
    with pytest.raises(UserError, match="cannot be positioned: its server gives whole files only"):
        TarShards(f"{rig.url}/shards")


def test_names_of_any_length_and_kind(tmp_path):
    """Long names have headers of their own; a file without a rest of its name has an empty one."""
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as files:
        for name in (f"{LONG}ä.b/one.seg.PNG", f"{LONG}ä.b/one.cls", f"{LONG}ä.b/two", "two.x"):
            member = tarfile.TarInfo(name)
            member.size = 700
            files.addfile(member, io.BytesIO(name.encode().ljust(700)))
    found = TarShards(tmp_path)
    assert [sorted(sample) for sample in map(found.__getitem__, range(3))] == [
        ["__key__", "cls", "seg.png"],
        ["", "__key__"],
        ["__key__", "x"],
    ]
    assert found[0]["cls"].strip().decode() == f"{LONG}ä.b/one.cls"


def tar_of(*names):
    """A tar file with these files, in this order."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as files:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            files.addfile(member, io.BytesIO(b"abc"))
    return content.getvalue()


WHOLE = tar_of("a.jpg", "a.cls", "b.jpg", "b.cls")
END = 4 * 2 * tarfile.BLOCKSIZE
"""Of its last file."""

UNWHOLE = {
    "cut off behind a sample": (WHOLE[: END // 2], "is no tar file: its end is missing"),
    "cut off behind a file": (WHOLE[: END // 4], "is no tar file: its end is missing"),
    "cut off behind the last sample": (WHOLE[:END], "is no tar file: its end is missing"),
    "cut off in its end": (WHOLE[: END + 100], "is no tar file: its end is missing"),
    "joined to another one": (WHOLE + tar_of("c.jpg"), "has more behind its end, as joined tar"),
    "a header that is none": (
        WHOLE[: END // 2] + b"x" * tarfile.BLOCKSIZE + WHOLE[END // 2 + tarfile.BLOCKSIZE :],
        "is no tar file: its end is missing",
    ),
    "a file twice": (tar_of("a.jpg", "a.jpg"), "a.jpg: its sample has jpg already"),
    "twice but for the case": (tar_of("a.jpg", "a.JPG"), "a.JPG: its sample has jpg already"),
    "two samples of one name": (tar_of(*("a.jpg", "a.cls") * 2), "a.jpg: its sample has jpg"),
    "files without an extension": (tar_of("a", "a"), "a: its sample has a file without an"),
    "a file of the name of the key": (tar_of("a.__key__"), "a.__key__: its sample has __key__"),
    "a sample in two places": (
        tar_of("a.jpg", "b.jpg", "a.cls"),
        "a.cls: does not follow the other files of its sample: sort them by name",
    ),
}


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("case", UNWHOLE)
def test_no_sample_is_lost_without_a_word(tmp_path, case, is_indexed):
    """Neither where shards are looked through, nor where an index is made of them."""
    content, words = UNWHOLE[case]
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(MalformedDataError) as found:
        (write_index if is_indexed else TarShards)(tmp_path)
    assert str(found.value).startswith(f"{tmp_path}/x.tar: {words}")
    assert "\n" not in str(found.value)
    assert not list(tmp_path.glob("*.index"))


def test_a_file_that_is_there_twice_is_told_where_an_index_hides_it(tmp_path):
    """As one of another program may."""
    content = tar_of("a.jpg", "a.jpg")
    (tmp_path / "x.tar").write_bytes(content)
    ends = json.dumps({"num_bytes": len(content), "ends": [0, 4 * tarfile.BLOCKSIZE]})
    (tmp_path / "x.tar.index").write_text(ends)
    with pytest.raises(MalformedDataError, match=r"x\.tar: a\.jpg: its sample has jpg already"):
        TarShards(tmp_path)[0]


@pytest.mark.parametrize(
    "ends", ["[]", "[0, 0]", "[5, 2]", "[-1, 4]", "[0, 99999999]", f"[0, {2**70}]", "[0.5]", "7"]
)
def test_an_index_that_is_none_is_told(tmp_path, ends):
    """Whatever it holds."""
    (tmp_path / "x.tar").write_bytes(WHOLE)
    (tmp_path / "x.tar.index").write_text(f'{{"num_bytes": {len(WHOLE)}, "ends": {ends}}}')
    with pytest.raises(MalformedDataError, match=r"x\.tar\.index: ") as found:
        TarShards(tmp_path)
    assert "\n" not in str(found.value)


SPOILS = {
    "compressed": (
        lambda path: path.rename(path.with_suffix(".tar.gz")),
        "cannot be positioned: must be a .tar that is not compressed",
    ),
    "no tar file": (lambda path: path.write_bytes(b"x" * 5000), "is no tar file: "),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:1700]), "is no tar file: "),
    "without samples": (lambda path: tarfile.open(path, "w").close(), "there is no sample in them"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILS.values(), ids=SPOILS.keys())
def test_what_is_wrong_is_one_line(tmp_path, spoil, words):
    """When the shards are opened."""
    write_shards(tmp_path, [3])
    spoil(tmp_path / "shard-0.tar")
    with pytest.raises(UserError) as found:
        TarShards(tmp_path)
    assert str(tmp_path) in str(found.value)
    assert words in str(found.value)
    assert "\n" not in str(found.value)


def test_blocks_stay_together_and_the_order_is_numpys(shards):
    """Whoever seeds NumPy's generator has the same order; a block of 0 is refused."""
    found = TarShards(shards)
    orders = []
    for seed in (1, 1, 2):
        np.random.seed(seed)  # noqa: NPY002
        orders.append(list(BlockShuffle(found, 5)))
    assert orders[0] == orders[1] != orders[2]
    assert len(BlockShuffle(found, 5)) == len(orders[0]) == 12
    assert all(order[order.index(5) :][:5] == [5, 6, 7, 8, 9] for order in orders)
    with pytest.raises(UserError, match="block_size: 0: must be a whole number >= 1"):
        BlockShuffle(found, 0)


def test_a_file_can_be_streamed(shards):
    """As any other of Python's, by pieces."""
    source = Source(shards)
    file = source.find().files[0]
    with source.stream(file) as stream:
        content = (shards / file.name).read_bytes()
        assert stream.read(100) == content[:100]
        assert stream.seek(-50, io.SEEK_END) == len(content) - 50
        assert stream.read() == content[-50:]
