"""Results in the user's cache folder, which others may fill with anything."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.errors import ConfigError
from hetero_hvd.messages.benchmark import DeviceMeasured, Speed
from hetero_hvd.probes import benchmark_cache

KEY = {"device": "d", "cores": "2"}
FOUND = DeviceMeasured(
    device="d",
    versions={},
    speeds=(Speed(what="copy", dtype="float32", per_second=1e9, spread_ratio=0.0, num_repeats=5),),
)


def sparse(path):
    """A file of 10 GB that takes no room."""
    with path.open("wb") as file:
        file.truncate(10**10)


RUBBISH = {
    "a pipe to which nobody writes": os.mkfifo,
    "a folder": Path.mkdir,
    "a huge file": sparse,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "no text": lambda path: path.write_bytes(b"\xff{"),
    "another kind": lambda path: path.write_text('{"key": {}, "result": 1, "is_valid": true}'),
    "a deep list": lambda path: path.write_text("[" * 100_000),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """That of the results."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    benchmark_cache.cache_folder().mkdir(parents=True)
    return benchmark_cache.cache_folder()


@pytest.mark.parametrize("case", RUBBISH)
def test_rubbish_beside_a_result_is_left_out(folder, case):
    """An agent looks there every 2 s, and must not wait."""
    benchmark_cache.save(KEY, FOUND, is_valid=True)
    RUBBISH[case](folder / "rubbish.json")
    assert list(benchmark_cache.entries(DeviceMeasured)) == [(KEY, FOUND)]


@pytest.mark.parametrize("case", RUBBISH)
def test_rubbish_in_place_of_a_result_is_none(folder, case):
    """It is measured anew; what can be replaced is."""
    benchmark_cache.save(KEY, FOUND, is_valid=True)
    (path,) = folder.glob("*.json")
    path.unlink()
    RUBBISH[case](path)
    assert benchmark_cache.load(KEY, DeviceMeasured) is None
    benchmark_cache.save(KEY, FOUND, is_valid=True)
    expected = None if path.is_dir() else FOUND
    assert benchmark_cache.load(KEY, DeviceMeasured) == expected


@pytest.fixture
def homeless(monkeypatch):
    """A user whom the system does not know, as containers run with one."""

    def unknown(number):
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_user_without_a_home_has_a_folder(homeless):  # noqa: ARG001 - it is about the user
    """As with HOME=/, which containers give him."""
    assert benchmark_cache.cache_folder() == Path("/.cache/hetero_hvd/benchmarks")


def test_a_path_from_a_home_that_is_not_there_is_refused(homeless):  # noqa: ARG001 - as above
    """In one line."""
    with pytest.raises(ConfigError, match="python: found a path from ~, but this user has no home"):
        NodeConfig(name="alpha", python="~/env/bin/python")
