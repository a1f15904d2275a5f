"""Whatever the place: the same listing and bytes; what fails, stalls or lies is tried again."""

import hashlib
import os
import pickle
import subprocess
import sys
import time

import pytest
from torch.utils.data import DataLoader

from hetero_hvd.core.data.file_sets import FileFacts
from hetero_hvd.data import Source
from hetero_hvd.data.listing import opened_files
from hetero_hvd.data.read_meter import take_readings
from hetero_hvd.errors import UnreadableError, UserError
from tests.data.source_rigs import RIGS, SERVED
from tests.kit.data.faulty_proxy import FAULTS
from tests.kit.data.hub_server import TOKEN

CONTENTS = {
    "b/two.txt": b"two" * 1000,
    "a/one.txt": b"one",
    "a/with space+ü.txt": b"odd",
    "c.bin": bytes(range(256)) * 64,
    ".hidden/x.txt": b"no",
}
NAMES = ["a/one.txt", "a/with space+ü.txt", "b/two.txt", "c.bin"]
QUICK = {"attempts": 2, "timeout_seconds": 20.0}


class Bytes:
    """A data set of whole files."""

    def __init__(self, source):
        self.source = source
        self.files = source.find().files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return hashlib.sha256(self.source.read(self.files[index])).hexdigest()


@pytest.fixture
def filled(rigs):
    """A rig with the files, by its name."""

    def rig(name):
        found = rigs(name)
        if not found.has_files:
            found.fill({f"all/{name}": content for name, content in CONTENTS.items()})
            found.has_files = True
        return found

    return rig


@pytest.mark.parametrize("name", RIGS)
def test_a_place_lists_and_gives_what_is_there(filled, name):
    """Sorted names, sizes, folders; whole files and parts; suffixes choose; the meter counts."""
    rig = filled(name)
    source = rig.open("all")
    files, folders = source.find()
    assert [file.name for file in files] == NAMES
    assert [file.size for file in files] == [len(CONTENTS[name]) for name in NAMES]
    assert {"a", "b"} <= set(folders)
    assert all(bool(file.tag) >= rig.says_tags for file in files)
    take_readings()
    assert [source.read(file) for file in files] == [CONTENTS[name] for name in NAMES]
    assert source.read(files[3], 10, 300) == CONTENTS["c.bin"][10:300]
    reading = take_readings()[source.shown]
    assert reading.num_bytes == sum(len(CONTENTS[name]) for name in NAMES) + 290
    assert reading.read_seconds > 0
    assert [file.name for file in source.find((".bin",)).files] == ["c.bin"]
    source.announce("files at", files)
    told = opened_files()[-1]
    assert (told.num_files, told.num_bytes) == (4, sum(len(CONTENTS[name]) for name in NAMES))
    assert bool(told.contents) == any(file.tag for file in files)


@pytest.mark.parametrize("name", RIGS)
def test_loader_processes_read_it_as_well(filled, name):
    """Forked, with a source that was used before; what they read is counted here."""
    data = Bytes(filled(name).open("all", cache_bytes=0))
    expected = [hashlib.sha256(CONTENTS[name]).hexdigest() for name in NAMES]
    assert [data[index] for index in range(4)] == expected
    take_readings()
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert list(loader) == expected
    assert take_readings()[data.source.shown].num_bytes > 0
    again = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own
    assert [again[index] for index in range(4)] == expected


QUICK_ONES = {
    ("s3", "stall"),
    ("gs", "garble"),
    ("hf", "garble"),
    *(("http", fault) for fault in FAULTS),
}
EACH = [
    pytest.param(name, fault, marks=[] if (name, fault) in QUICK_ONES else pytest.mark.matrix)
    for name in SERVED
    for fault in FAULTS
]


@pytest.mark.parametrize(("name", "fault"), EACH)
def test_what_fails_stalls_or_lies_is_tried_again(filled, name, fault):
    """Once: nobody notices. Each time: one line that names the file, within the time allowed."""
    rig = filled(name)
    seconds = 2 if fault == "stall" else 10
    source = rig.open("all", cache_bytes=0, attempts=2, timeout_seconds=seconds)
    file = next(file for file in source.find().files if file.name == "b/two.txt")
    if fault == "garble" and not file.tag.startswith(("md5:", "sha256:")):
        pytest.skip("this place does not tell a checksum")
    rig.proxy.spoil("two.txt", fault, 1)
    assert source.read(file) == CONTENTS["b/two.txt"]
    assert rig.proxy.left("two.txt") == 0
    rig.proxy.spoil("two.txt", fault, 1000)
    with pytest.raises(UnreadableError) as found:
        source.read(file)
    assert rig.proxy.left("two.txt") < 1000
    rig.proxy.spoil("two.txt", fault, 0)
    line = str(found.value)
    assert line.startswith(f"{source.shown}/b/two.txt: reading has failed: ")
    assert line.endswith("(after 2 attempts)")
    assert "\n" not in line


STALLED = {"http": "all/", "s3": "bucket", "gs": "b/bucket/o"}
"""End of the path that a listing asks for."""


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("name", STALLED)
def test_a_listing_that_stalls_is_given_up_soon(filled, monkeypatch, name, is_told):
    """After the attempts of a request, where the library tells of requests; else after a bound."""
    rig = filled(name)
    if not is_told:
        monkeypatch.setattr("hetero_hvd.data.source.counted", lambda _: None)
        monkeypatch.setattr("hetero_hvd.data.source.LISTING_RATIO", 3)
    source = rig.open("all", attempts=2, timeout_seconds=1)
    rig.proxy.spoil(STALLED[name], "stall", 1000)
    began_at = time.monotonic()
    try:
        with pytest.raises(UserError, match="listing has failed: no answer in") as found:
            source.find()
        assert rig.proxy.left(STALLED[name]) < 1000
    finally:
        rig.proxy.spoil(STALLED[name], "stall", 0)
    assert time.monotonic() - began_at < 10
    assert "\n" not in str(found.value)


def test_a_listing_of_many_requests_has_the_time_it_needs(filled, monkeypatch):
    """As long as one after the other is answered, and within a bound."""
    rig = filled("http")
    source = rig.open("all", attempts=1, timeout_seconds=1)
    answer = rig.proxy.fault
    monkeypatch.setattr(rig.proxy, "fault", lambda target: time.sleep(0.3) or answer(target))
    began_at = time.monotonic()
    assert [file.name for file in source.find().files] == NAMES
    assert time.monotonic() - began_at > 1
    monkeypatch.setattr("hetero_hvd.data.source.LISTING_RATIO", 1)
    with pytest.raises(UserError, match="listing has failed: no"):
        source.find()


@pytest.mark.parametrize("name", ["file", "memory", "s3", "http"])
def test_a_scheme_may_be_in_capitals(filled, name):
    """As that of any URL."""
    rig = filled(name)
    scheme, _, rest = rig.url.partition("://")
    source = Source(f"{scheme.upper()}://{rest}/all", cache_bytes=0)
    files = source.find().files
    assert [file.name for file in files] == NAMES
    assert source.shown == f"{rig.url}/all"
    assert source.is_near is (name in ("file", "memory"))
    assert source.read(files[0]) == CONTENTS[NAMES[0]]


@pytest.mark.parametrize("name", RIGS)
def test_what_is_not_there_is_one_line(filled, name):
    """A folder, and a file that the listing had; it is not asked for again and again."""
    rig = filled(name)
    with pytest.raises(UserError) as found:
        rig.open("no-such", **QUICK).find()
    assert str(found.value).startswith(f"data at {rig.url}/no-such: no")
    source = rig.open("all", cache_bytes=0, **QUICK)
    with pytest.raises(UnreadableError, match=r"gone\.txt: ") as found:
        source.read(FileFacts("gone.txt", 7))
    assert "\n" not in str(found.value)


def test_no_secret_of_a_url_is_shown():
    """User, password and query stand in no line."""
    url = "https://me:pass-word@127.0.0.1:1/files?token=abcdef"
    with pytest.raises(UserError) as found:
        source_of(url).find()
    assert "data at https://127.0.0.1:1/files: " in str(found.value)
    assert "pass-word" not in str(found.value)
    assert "abcdef" not in str(found.value)


def source_of(url):
    """A source that gives up soon."""
    return Source(url, attempts=1, timeout_seconds=5)


@pytest.mark.parametrize(
    ("url", "more", "words"),
    [
        ("", {}, "data at '': must be a path or a URL such as s3://"),
        (7, {}, "data at 7: must be a path or a URL"),
        ("/x", {"attempts": 0}, "data at /x: attempts: 0: must be a whole number from 1 to 100"),
        (
            "/x",
            {"timeout_seconds": 0.0},
            "data at /x: timeout_seconds: 0.0: must be a number from 0.001 to 86400",
        ),
        (
            "/x",
            {"cache_bytes": -1},
            "data at /x: cache_bytes: -1: must be a number from 0 to 1e+18",
        ),
        ("http://[x", {}, "data at http://…: is no URL: must be such as http://host/path"),
        ("http://me:pass/word@host/x", {}, "data at http://…: is no URL"),
        (["s3://me:pass-word@x"], {}, "data at ['s3://me:(hidden)@x']: must be a path or a URL"),
        ("no-such-scheme://x", {}, "no-such-scheme://x: nothing reads no-such-scheme://: must be"),
    ],
)
def test_bad_arguments_are_one_line(url, more, words):
    """Told before anything is read, or when it is listed."""
    with pytest.raises(UserError) as found:
        Source(url, **more).find()
    assert words in str(found.value)
    assert "\n" not in str(found.value)


LIST = """
from hetero_hvd.data import Source
from hetero_hvd.errors import UserError
source = Source("hf://datasets/tester/files/all", cache_bytes=0, attempts=1)
try:
    print(sum(len(source.read(file)) for file in source.find().files))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("token", [TOKEN, "hf_another_secret_of_somebody"])
def test_a_hub_is_found_by_the_environment(filled, tmp_path, token):
    """As huggingface_hub finds it; who may not see the data set is told so, and no token."""
    rig = filled("hf")
    names = {"HF_ENDPOINT": rig.proxy.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path)}
    vector = [sys.executable, "-c", LIST]
    done = subprocess.run(
        vector, env=os.environ | names, capture_output=True, text=True, check=True, timeout=100
    )
    if token == TOKEN:
        assert int(done.stdout) == sum(len(CONTENTS[name]) for name in NAMES)
        return
    assert done.stdout.startswith("data at hf://datasets/tester/files/all: no")
    assert token not in done.stdout + done.stderr
