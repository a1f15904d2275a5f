"""A file of a run that grows all the time has a limit, whatever stands in the way."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from hetero_hvd.driver.output import console, json_logs
from hetero_hvd.driver.output.console import WorkerOutput
from hetero_hvd.kept_file import KeptFile, older
from hetero_hvd.run.reports.comparing.fingerprints import compare
from tests.test_disk import Said


def records(path):
    """The numbers in a file."""
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def append(file, numbers):
    """Records of 20 bytes."""
    for number in numbers:
        assert file.append(b'{"number": %7d}\n' % number)


def test_a_file_goes_on_in_a_new_one_at_its_limit(tmp_path):
    """The one before is kept, whole records each, and what was before that is gone."""
    path = tmp_path / "decisions.jsonl"
    file = KeptFile(path, Said().append, max_bytes=200).touch()
    append(file, range(35))
    file.close()
    assert records(older(path)) == list(range(20, 30))
    assert records(path) == list(range(30, 35))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name, f"{path.name}.1"]


def test_a_file_that_another_process_has_begun_counts(tmp_path):
    """As after a resume in the same folder."""
    path = tmp_path / "decisions.jsonl"
    for begin in (0, 7, 14):
        file = KeptFile(path, Said().append, max_bytes=200)
        append(file, range(begin, begin + 7))
        file.close()
    assert records(older(path)) + records(path) == list(range(21))[-11:]


def test_a_record_that_is_too_large_by_itself_is_kept(tmp_path):
    """It has a file to itself."""
    path = tmp_path / "log"
    file = KeptFile(path, Said().append, max_bytes=100)
    for record in (b"a" * 10, b"b" * 500, b"c" * 10):
        assert file.append(record)
    file.close()
    assert older(path).read_bytes() == b"b" * 500
    assert path.read_bytes() == b"c" * 10


def test_a_file_that_cannot_be_put_aside_becomes_longer(tmp_path):
    """A folder stands in its way: nothing is lost."""
    path = tmp_path / "log"
    (tmp_path / "log.1" / "x").mkdir(parents=True)
    file = KeptFile(path, Said().append, max_bytes=100)
    append(file, range(20))
    file.close()
    assert records(path) == list(range(20))


@contextmanager
def worker_log(folder):
    """What a worker prints."""
    output = WorkerOutput(Said(), folder / "alpha-0.log", "")
    output.is_shown = False
    yield output.feed
    output.close()


@contextmanager
def driver_log(folder):
    """What the driver logs."""
    handler = json_logs._Handler(folder / "driver.log")
    yield handler._file.append
    handler.close()


@pytest.mark.parametrize("writer", [worker_log, driver_log])
def test_logs_have_a_limit(tmp_path, monkeypatch, writer):
    """Whoever writes them."""
    monkeypatch.setattr(console, "MAX_LOG_BYTES", 10_000)
    monkeypatch.setattr(json_logs, "MAX_LOG_BYTES", 10_000)
    with writer(tmp_path) as write:
        for number in range(1000):
            write(b"%099d\n" % number)
    sizes = {path.name: path.stat().st_size for path in Path(tmp_path).iterdir()}
    assert len(sizes) == 2
    assert set(sizes.values()) == {10_000}


def test_fingerprints_are_compared_with_what_was_put_aside(tmp_path):
    """As far as both runs have them."""
    for name in "ab":
        (tmp_path / name).mkdir()
        file = KeptFile(tmp_path / name / "fingerprints.jsonl", Said().append, max_bytes=2000)
        for step in range(30):
            line = {"epoch": 0, "step": step, "is_epoch": False, "fingerprint": str(step)}
            line |= {"loss": 0.0, "parts": {}, "evaluations": [], "numerics": "n"}
            file.append(json.dumps(line).encode() + b"\n")
        file.close()
        assert older(tmp_path / name / "fingerprints.jsonl").exists()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.are_equal
    assert int(found.lines[0].split()[1]) > 15
