"""A sink beside a job: no step waits for it, and what is left out is counted and told."""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from hetero_hvd.config import JobConfig
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.errors import JobError
from hetero_hvd.messages import RunEnded, RunStarted
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.sinks import observer as observers
from hetero_hvd.run.sinks import sink as sinks
from hetero_hvd.run.sinks.export import export_run, follow_run
from hetero_hvd.run.sinks.observer import SinkObserver, close_all
from hetero_hvd.run.tracking.begin_and_end import recorded_settings
from tests.run.records.test_records import JOINED, write
from tests.run.records.test_records import timed as timed_rows

from . import readers, servers
from .recorded import ACCURACY, EVALUATED, EVENTS, ROWS, STARTED

ENDED = EVENTS[-1]


class Told:
    """A sink that does what a test wants."""

    resumes = True

    def __init__(self, url):
        self.url = url

    def begin(self, _run):
        """As wanted."""
        self.does("begin")

    def write(self, samples):
        """As wanted; keeps them."""
        self.does("write")
        self.kept.extend(samples)

    def end(self, _state):
        """As wanted."""
        self.does("end")


@pytest.fixture
def make(monkeypatch):
    """Makes an observer of a sink, and the list of what it says."""

    def made(does, *, resumes=True, max_waiting=observers.MAX_WAITING):
        attributes = {"does": lambda _, what: does(what), "resumes": resumes, "kept": []}
        kind = type("Kind", (Told,), attributes)
        monkeypatch.setattr(observers, "open_sink", kind)
        said = []
        return SinkObserver("kind:u:pw@h", said.append, max_waiting=max_waiting), said, kind.kept

    monkeypatch.setattr(observers, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(observers, "CLOSE_SECONDS", 5.0)
    return made


def timed(events):
    """With times and tables, as the bus gives them."""
    return list(with_tables((10.0 * number, event) for number, event in enumerate(events)))


def observe_all(observer, events):
    """How long the longest took."""
    longest = 0.0
    for at, event in timed(events):
        began = time.perf_counter()
        observer.observe(at, event)
        longest = max(longest, time.perf_counter() - began)
    return longest


def test_along_with_a_run_the_same_is_written_as_afterwards(tmp_path):
    """Line for line, in another order at most."""
    run = tmp_path / "run"
    run.mkdir()
    write(run, *EVENTS)
    export_run(run, f"csv:{tmp_path / 'after.csv'}")
    observer = SinkObserver(f"csv:{tmp_path / 'along.csv'}")
    observe_all(observer, EVENTS)
    observer.close()
    found = [(tmp_path / name).read_text().splitlines() for name in ("after.csv", "along.csv")]
    assert sorted(found[0]) == sorted(found[1])
    assert observer.num_lost == 0


UNMEASURED = {
    "all are measured": (0.1, 0.2),
    "the first is not": (math.nan, 0.2),
    "the last is not": (0.1, math.nan),
    "none is": (math.nan, math.nan),
    "no time": (0.0, 0.2),
}


@pytest.mark.parametrize("case", UNMEASURED)
def test_what_was_not_measured_is_the_same_along_and_afterwards(tmp_path, case):
    """Whosever step it was."""
    run = tmp_path / "run"
    run.mkdir()
    rows = [
        replace(row, step_seconds=seconds)
        for row, seconds in zip(ROWS, UNMEASURED[case], strict=True)
    ]
    events = [STARTED, JOINED, *(timed_rows(step, *rows) for step in (9, 19, 29)), ENDED]
    write(run, *events)
    export_run(run, f"csv:{tmp_path / 'after.csv'}")
    observer = SinkObserver(f"csv:{tmp_path / 'along.csv'}")
    observe_all(observer, events)
    observer.close()
    found = [(tmp_path / name).read_text().splitlines() for name in ("after.csv", "along.csv")]
    assert sorted(found[0]) == sorted(found[1])
    assert any("run/samples_per_second" in line for line in found[0]) == (case != "none is")


def test_a_sink_that_hangs_delays_nothing(make):
    """Neither a step nor, for longer than a moment, the end; drops are counted, and told once."""
    release = threading.Event()
    observer, said, _ = make(lambda _: release.wait(60), max_waiting=10)
    assert observe_all(observer, [STARTED, *[EVALUATED] * 100, ENDED]) < 0.1
    began = time.monotonic()
    observer.close(0.2)
    assert time.monotonic() - began < 2
    assert observer.num_lost == 200
    assert [line for line in said if "does not keep up" in line] == said[:1]
    assert "has not ended: what it has may be incomplete" in said[1]
    assert "200 samples were left out; the record has them" in said[2]
    assert len(said) == 3
    release.set()


def test_sinks_that_hang_are_waited_for_together(make):
    """Three cost the time of one."""
    release = threading.Event()
    made = [make(lambda _: release.wait(60))[0] for _ in range(3)]
    for observer in made:
        observe_all(observer, [STARTED, ENDED])
    began = time.monotonic()
    observers.CLOSE_SECONDS = 0.3
    close_all(made)
    assert time.monotonic() - began < 0.8
    release.set()


def failing(*whats):
    """Does these wrong, each once."""
    left = list(whats)

    def does(what):
        if what in left:
            left.remove(what)
            raise OSError(f"{what} has failed")

    return does


def test_a_sink_that_dies_midway_is_opened_again(make):
    """If it can go on: nothing is lost, and it is told once."""
    observer, said, kept = make(failing("begin", "write", "write"))
    observe_all(observer, [STARTED, *[EVALUATED] * 3, ENDED])
    observer.close()
    assert (len(kept), observer.num_lost) == (6, 0)
    assert len(said) == 1
    assert said[0].startswith("export to kind:u:pw@h: begin has failed; the training goes on")


def test_a_file_that_cannot_be_written_is_given_up(make):
    """Another one would take the place of what is in it."""
    observer, said, kept = make(failing("write"), resumes=False)
    observe_all(observer, [STARTED, *[EVALUATED] * 3, ENDED])
    observer.close()
    assert (len(kept), observer.num_lost) == (0, 6)
    assert "write has failed" in said[0]
    assert "6 samples were left out" in said[1]
    assert len(said) == 2


def test_a_pipe_that_nobody_reads_any_more_is_given_up(make):
    """As standard output under `| head`; what is left out is counted."""

    def does(what):
        if what == "write":
            raise BrokenPipeError

    observer, said, kept = make(does, resumes=False)
    observe_all(observer, [STARTED, *[EVALUATED] * 3, ENDED])
    observer.close()
    assert (len(kept), observer.num_lost) == (0, 6)
    assert "nobody reads it any more; the training goes on" in said[0]


def test_an_end_that_fails_is_told(make):
    """As the file may not be whole."""
    observer, said, _ = make(failing("end"))
    observe_all(observer, [STARTED, ENDED])
    observer.close()
    assert "end has failed" in said[0]


def test_a_job_that_never_started_needs_no_sink(make):
    """It ends at once."""
    observer, said, _ = make(failing("begin"))
    observer.observe(0.0, ENDED)
    observer.close()
    assert said == []


def test_what_cannot_be_is_refused_before_the_job(tmp_path):
    """A kind that is not there."""
    with pytest.raises(JobError, match="must begin with"):
        SinkObserver(f"nonsense:{tmp_path}")


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="apt install redis-server")
def test_a_real_server_that_is_started_again_gets_the_rest(tmp_path, monkeypatch):
    """Redis, killed in the midst of a run: its hash has all that was told after."""
    pytest.importorskip("redis")
    monkeypatch.setattr(observers, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setenv("REDISCLI_AUTH", servers.PASSWORD)
    said = []
    port = servers.free_port()
    observer = SinkObserver(f"redis://127.0.0.1:{port}/0", said.append)
    with servers.redis_server(tmp_path, port):
        for at, event in timed(EVENTS[:-3]):
            observer.observe(at, event)
        servers.wait_until(lambda: observer._queue.empty() and not observer._num_in_hand)
    observer.observe(60.0, EVALUATED)
    servers.wait_until(lambda: said)
    with servers.redis_server(tmp_path, port):
        observer.observe(70.0, ENDED)
        observer.close()
        found = readers.from_redis(f"redis://127.0.0.1:{port}/0")
    assert found["evaluation/accuracy"] == ACCURACY
    assert (len(said), observer.num_lost) == (1, 0)


class Following:
    """Records on, each time somebody waits."""

    def __init__(self, recorder, events):
        self.recorder = recorder
        self.events = iter(events)
        self.num_waited = 0

    def __call__(self, _seconds):
        """A second later."""
        self.num_waited += 1
        found = next(self.events, None)
        if found is not None:
            self.recorder.observe(*found)
            assert self.recorder.flush()


def test_a_run_is_followed_to_its_end(tmp_path):
    """By another process, through the record: each sample once, also of intervals that grow."""
    run = tmp_path / "run"
    run.mkdir()
    recorder = Recorder(run)
    events = timed(EVENTS)
    recorder.observe(*events[0])
    assert recorder.flush()
    wait = Following(recorder, events[1:])
    follow_run(run, f"csv:{tmp_path / 'followed.csv'}", wait=wait)
    recorder.close()
    export_run(run, f"csv:{tmp_path / 'after.csv'}")
    found = [(tmp_path / name).read_text().splitlines() for name in ("after.csv", "followed.csv")]
    assert sorted(found[0]) == sorted(found[1])
    assert wait.num_waited == len(events) - 1


def test_a_run_that_goes_on_in_its_folder_is_followed_on(tmp_path):
    """Its first end is not the end."""
    run = tmp_path / "run"
    run.mkdir()
    write(run, STARTED, EVALUATED, RunEnded(exit_code=1, reason="killed"), STARTED)
    recorder = Recorder(run)
    wait = Following(recorder, [(99.0, ENDED)])
    follow_run(run, f"csv:{tmp_path / 'followed.csv'}", wait=wait)
    recorder.close()
    assert wait.num_waited == 1


def test_following_that_is_interrupted_leaves_a_whole_file(tmp_path):
    """Ctrl-C: what was written is closed."""
    pytest.importorskip("pyarrow")
    run = tmp_path / "run"
    run.mkdir()
    write(run, STARTED, EVALUATED)

    def interrupt(_seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_run(run, f"parquet:{tmp_path / 'run.parquet'}", wait=interrupt)
    found = readers.from_parquet(tmp_path / "run.parquet")
    assert found["evaluation/accuracy"] == ACCURACY


def test_a_password_is_in_no_record(tmp_path):
    """Not in the settings that a run's start tells, nor in a message."""
    url = f"postgresql://u:{servers.PASSWORD_IN_URL}@h/d?token=abc"
    started = RunStarted(
        run_id="r", command=(), nodes=(), settings=recorded_settings(JobConfig(export=(url,)))
    )
    write(tmp_path, started)
    for path in Path(tmp_path).iterdir():
        assert b"s3cret" not in path.read_bytes()
        assert b"abc" not in path.read_bytes()
    assert started.settings["export"] == "postgresql://u:(hidden)@h/d?(hidden)"
    assert "abc" not in sinks.shown("influx:http://h/w?token=abc&org=o")
