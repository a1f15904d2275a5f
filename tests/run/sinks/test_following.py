"""A run is followed in whichever of its folders it goes on."""

from __future__ import annotations

import pytest

from hetero_hvd.core.step_table import StepTables
from hetero_hvd.measure.recording import read_recording
from hetero_hvd.messages import Evaluated, Logged, LoggedValue, RunEnded, StepsTimed, WorkersJoined
from hetero_hvd.run.records.parts import run_timings
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.sinks.export import export_run, follow_run
from tests.run.records.test_parts import ENDED, STARTED, met, timed


class Part:
    """One of a run's folders, while it is written."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self._recorder = Recorder(folder)
        self._timings = TimingLog(folder)
        self._tables = StepTables()

    def observe(self, *events):
        """What happens, with its times."""
        for at, event in events:
            self._recorder.observe(at, event)
            self._timings.observe(at, event)
            if (table := self._tables.observe(event)) is not None:
                self._recorder.observe(at, table)
        assert self._recorder.flush()

    def close(self):
        """Its process has ended."""
        self._recorder.close()
        self._timings.close()


def trained(number, begin, first, count):
    """A membership, a second for each step; all of it within a minute: nothing is thinned."""
    yield begin, met(number, first)
    for step in range(first, first + count):
        at = begin + 1 + step - first
        yield at, timed(number, step)
        x = float(step)
        value = LoggedValue(step=step, count=1, mean=x, minimum=x, maximum=x, last=x)
        yield at + 0.2, Logged(step=step, epoch=0, values={"x": value})
        yield at + 0.3, Evaluated(epoch=0, step=step, metrics={"accuracy": step / 100})


def goes_on(a, _):
    """Nobody is lost."""
    a.observe(*trained(2, 131.0, 30, 20))
    yield
    a.observe((155.0, ENDED))


def copy_leads(a, b):
    """Who kept the copy goes on."""
    a.close()
    b.observe((200.0, STARTED), *trained(2, 200.5, 30, 15))
    yield
    b.observe(*list(trained(2, 200.5, 30, 30))[46:])
    yield
    b.observe((240.0, ENDED))


def to_and_fro(a, b):
    """Then the first one again."""
    yield from list(copy_leads(a, b))[:1]
    back = Part(a.folder.with_name("run-2"))
    back.observe((300.0, STARTED), *trained(3, 300.5, 60, 20), (330.0, ENDED))
    back.close()


def new_host_leads(a, b):
    """A third host, which kept no copy."""
    a.close()
    b.close()
    third = Part(a.folder.with_name("run.c"))
    third.observe((200.0, STARTED), *trained(2, 200.5, 30, 15))
    yield
    third.observe((240.0, RunEnded(exit_code=1, reason="failed")))
    third.close()


COURSES = {each.__name__: each for each in (goes_on, copy_leads, to_and_fro, new_host_leads)}


@pytest.mark.parametrize("named", ["run", "run.b"])
@pytest.mark.parametrize("course", COURSES)
def test_it_is_followed_on_wherever_it_goes_on(tmp_path, course, named):
    """What is written is what an export gives afterwards, each line once."""
    a, b = Part(tmp_path / "run"), Part(tmp_path / "run.b")
    begin = [(100.0, STARTED), *trained(1, 100.0, 0, 30)]
    a.observe(*begin)
    b.observe(*begin[:-4])  # it lacks the last exchange
    told = COURSES[course](a, b)
    follow_run(
        tmp_path / named, f"csv:{tmp_path / 'followed.csv'}", wait=lambda _: next(told, None)
    )
    export_run(tmp_path / named, f"csv:{tmp_path / 'after.csv'}")
    found = [(tmp_path / name).read_text().splitlines() for name in ("after.csv", "followed.csv")]
    assert sorted(found[0]) == sorted(found[1])
    assert len(set(found[1])) == len(found[1]) > 100
    timings = [type(event) for _, event in run_timings(tmp_path / named)]
    assert set(timings) == {StepsTimed, WorkersJoined}
    assert len(read_recording(tmp_path / named).recorded) == timings.count(StepsTimed)
    for part in (a, b):
        part.close()
