"""A recording is read by the commands for runs."""

from __future__ import annotations

import csv
import json
import math

import msgspec
import numpy as np
import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch import report
from hetero_hvd.core.recording.device_figures import DeviceFigures, Interval
from hetero_hvd.core.recording.framing import framed
from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.errors import JobError
from hetero_hvd.messages import DeviceSample, NodeSampled
from hetero_hvd.run.recordings.device_report import summaries_of
from hetero_hvd.run.recordings.folder import RecordingMark, write_recording
from hetero_hvd.run.recordings.frames import FILE, RecordedFrame, read_frames
from hetero_hvd.run.reports import plots

SECOND = 10**6
BEGIN = 1_800_000_000


def frames(node="a", *, seconds=range(100), use=lambda at: (at % 4) / 3):
    """A sample each second; its GPU draws 100 W, and its counter says so."""
    for number, at in enumerate(seconds, 1):
        gpu = DeviceSample(
            index=0,
            uuid=f"GPU-{node}",
            name="H",
            use_ratio=use(at),
            power_watts=100.0,
            energy_joules=100.0 * at,
            pcie_received_bytes_per_second=1e3,
            pcie_sent_bytes_per_second=2e3,
        )
        sample = NodeSampled(node=node, cpu_use_ratio=0.5, devices=(gpu,))
        content = msgspec.msgpack.encode(sample)
        yield RecordedFrame(node, f"s-{node}", Recorded(number, (BEGIN + at) * SECOND, content))


@pytest.fixture
def recording(tmp_path):
    """Two nodes, of which one is silent for 40 s."""
    silent = [at for at in range(100) if not 30 <= at < 70]
    session = RecordingSession(name="night", from_microseconds=BEGIN * SECOND)
    mark = RecordingMark(
        at_unix_seconds=BEGIN + 30.0, node="b", kind="unhealthy", words="is not heard any more"
    )
    write_recording(
        tmp_path / "night",
        session,
        [*frames(), *frames("b", seconds=silent)],
        until_microseconds=(BEGIN + 100) * SECOND,
        marks=[mark],
    )
    return tmp_path / "night"


def test_its_frames_are_those_of_the_session(recording):
    """Bit for bit, and in order."""
    found = list(read_frames(recording))
    assert found[:100] == list(frames())
    assert len(found) == 160


def test_what_its_devices_did(recording):
    """Without what is missing, which is no zero."""
    found = {(each.node, each.device): each for each in summaries_of(recording)}
    whole, partly = found["a", "0"], found["b", "0"]
    assert (whole.num_samples, whole.missing_seconds, whole.every_seconds) == (100, 0, 1.0)
    assert (whole.idle_seconds, whole.saturated_seconds) == (25.0, 24.0)
    assert whole.joules == partly.joules == 9900.0
    spread = whole.figures["use_ratio"]
    assert (spread.mean, spread.median, spread.p95, spread.max) == (0.5, 0.5, 1.0, 1.0)
    assert partly.missing_seconds == 41.0
    assert found["a", "node"].joules is None
    assert found["a", "node"].figures.keys() == {"use_ratio"}


ORDERS = {
    "in the order of time": lambda found: found,
    "the later life of an agent first": lambda found: [*found[50:], *found[:50]],
    "lives that overlap, as a wall clock was wrong": lambda found: [*found[::2], *found[1::2]],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_what_devices_did_is_told_by_time(recording, order):
    """Whatever order their samples come in."""
    interval = Interval(BEGIN, BEGIN + 100.0, 1.0)
    figures = DeviceFigures(interval)
    for frame in order(list(frames())):
        figures.add("a", frame.at_unix_seconds, frame.sample)
    expected = [each for each in summaries_of(recording) if each.node == "a"]
    found = sorted(figures.summaries(), key=lambda each: each.device != "node")
    assert repr(found) == repr(expected)


DAMAGES = {
    "the last record is torn": lambda content: content[:-10],
    "another byte": lambda content: content[:-10] + b"?" + content[-9:],
    "zeros follow": lambda content: content + bytes(16),
    "a record that is none": lambda content: content + framed(b"?"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_frames_that_are_damaged_are_told(recording, capsys, damage):
    """In one line: figures of a part would pass for those of all."""
    path = recording / FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(JobError, match=r"frames\.pieces: ") as found:
        list(read_frames(recording))
    assert "\n" not in str(found.value)
    assert main(["report", str(recording)]) not in (0, None)
    assert "frames.pieces: " in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--plot=plot.png"]])
def test_a_recording_has_no_moment_of_training(recording, monkeypatch, capsys, more):
    """`--at` is refused in one line, not left unheeded."""
    monkeypatch.chdir(recording.parent)
    assert main(["report", str(recording), "--at", "10s", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--at" in line


def test_without_a_counter_energy_follows_from_power(tmp_path):
    """As far as it was measured."""

    def without(frame):
        sample = frame.sample
        gpu = msgspec.structs.replace(sample.devices[0], energy_joules=math.nan)
        content = msgspec.msgpack.encode(msgspec.structs.replace(sample, devices=(gpu,)))
        return frame._replace(recorded=frame.recorded._replace(sample=content))

    session = RecordingSession(name="n", from_microseconds=BEGIN * SECOND)
    end = (BEGIN + 100) * SECOND
    write_recording(tmp_path / "n", session, map(without, frames()), until_microseconds=end)
    (gpu,) = (each for each in summaries_of(tmp_path / "n") if each.device == "0")
    assert gpu.joules == 9900.0


def test_the_commands_for_runs_read_it(recording, capsys):
    """`runs`, `report`, `export` and the plot."""
    assert main(["runs", str(recording.parent)]) == 0
    assert "night  finished" in (shown := capsys.readouterr().out)
    assert "160 samples and 0 missing" in shown
    assert main(["report", str(recording)]) == 0
    assert "b: is not heard any more" in capsys.readouterr().out
    assert main(["report", str(recording), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["device"] for each in told["devices"]] == ["node", "0"] * 2
    assert main(["export", str(recording), "--to", "csv:-"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    received, sent = (
        [row for row in rows if row["name"] == f"a/0/gpu_pcie_bytes_per_second/{way}"]
        for way in ("receive", "transmit")
    )
    assert [float(row["value"]) for row in received] == [1e3] * 100
    assert [float(row["value"]) for row in sent] == [2e3] * 100
    assert main(["report", str(recording), "--plot", str(recording.parent / "plot.png")]) == 0
    assert (recording.parent / "plot.png").stat().st_size


POINTS = {
    "each sample": (20_000, 100, 60),
    "means, as there are many": (100, 10, 6),
}


@pytest.mark.parametrize("case", POINTS)
def test_a_plot_has_a_point_for_each_sample(recording, monkeypatch, capsys, case):
    """Unless there are more than anybody sees; where nothing is known is a gap, and is no point."""
    most, num_whole, num_partly = POINTS[case]
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: drawn.append(figure))
    monkeypatch.setattr(report, "MAX_DRAWN_FRAMES", most)
    assert main(["report", str(recording), "--plot", str(recording.parent / "plot.png")]) == 0
    assert capsys.readouterr().out == f"plot: {recording.parent / 'plot.png'}\n"
    lines = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].lines}
    known = {name: np.count_nonzero(np.isfinite(values)) for name, values in lines.items()}
    assert (known["a GPU 0"], known["b GPU 0"]) == (num_whole, num_partly)
    assert [np.count_nonzero(np.isnan(lines[f"{name} GPU 0"])) for name in "ab"] == [0, 1]


GAPS = {
    "one sample": ([0], 0),
    "two, an hour apart": ([0, 3600], 1),
    "one, and an hour later two": ([0, 3600, 3601], 1),
    "each an hour after the other": ([0, 3600, 7200], 2),
    "the longest rate": (list(range(0, 600, 60)), 0),
    "one is missing": ([0, 1, 3, 4], 0),
    "two are missing": ([0, 1, 4, 5], 1),
}


@pytest.mark.parametrize("case", GAPS)
def test_no_line_is_drawn_through_what_is_not_known(case):
    """However few samples there are: none is longer than the longest rate allows."""
    times, num_gaps = GAPS[case]
    drawn = list(plots._with_gaps([(float(at), 1.0) for at in times], 1.0))
    assert [at for at, value in drawn if math.isfinite(value)] == times
    assert sum(math.isnan(value) for _, value in drawn) == num_gaps


PLACES = {
    "a folder": (".", "must end in .png, .pdf or .svg"),
    "no suffix": ("plot", "must end in .png, .pdf or .svg"),
    "an unknown suffix": ("plot.xyz", "Format 'xyz' is not supported"),
    "no such folder": ("none/plot.png", "cannot be written: No such file or directory"),
    "a folder that looks like a plot": ("folder.png", "cannot be written: Is a directory"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_plot_that_cannot_be_written_is_told(recording, capsys, tmp_path, place):
    """And none is written anywhere else, such as with another suffix than was given."""
    name, words = PLACES[place]
    (tmp_path / "in" / "folder.png").mkdir(parents=True)
    path = tmp_path / "in" / name
    assert main(["report", str(recording), "--plot", str(path)]) == 2
    assert f"{path}: " in (told := capsys.readouterr().err)
    assert words in told
    assert {each.name for each in tmp_path.iterdir()} == {recording.name, "in"}
    assert [each.name for each in (tmp_path / "in").iterdir()] == ["folder.png"]


def test_a_plot_of_two_agents_of_one_name_is_in_the_order_of_time(tmp_path, monkeypatch):
    """Frames come life by life of an agent; two that overlap are one line."""
    session = RecordingSession(name="night", from_microseconds=BEGIN * SECOND)
    found = list(frames())
    told = [*found[::2], *found[1::2]]
    write_recording(tmp_path / "night", session, told, until_microseconds=(BEGIN + 100) * SECOND)
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: drawn.append(figure))
    assert main(["report", str(tmp_path / "night"), "--plot", str(tmp_path / "plot.png")]) == 0
    (line,) = (line for line in drawn[0].axes[0].lines if line.get_label() == "a GPU 0")
    assert np.all(np.diff(line.get_xdata()) > 0)
    assert len(line.get_xdata()) == 100


DRAWN = {"GPUs": (True, ["use ratio", "power watts"]), "nothing": (False, ["use ratio"])}


@pytest.mark.parametrize(("is_told", "labels"), DRAWN.values(), ids=DRAWN)
def test_only_what_is_told_is_drawn(tmp_path, monkeypatch, is_told, labels):
    """A plot for each figure that any device tells, its devices in order; a ratio is of one."""
    session = RecordingSession(name="night", from_microseconds=BEGIN * SECOND)
    told = [*frames("b"), *frames()] if is_told else []
    end = (BEGIN + 100) * SECOND
    write_recording(tmp_path / "night", session, told, until_microseconds=end)
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: drawn.append(figure))
    assert main(["report", str(tmp_path / "night"), "--plot", str(tmp_path / "plot.png")]) == 0
    (figure,) = drawn
    assert [axis.get_ylabel() for axis in figure.axes] == labels
    assert figure.axes[0].get_ylim() == plots.RATIO_LIMITS
    devices = ["a", "a GPU 0", "b", "b GPU 0"] if is_told else []
    assert [line.get_label() for line in figure.axes[0].lines] == devices


def test_another_recording_is_not_written_over(recording):
    """One of the same session is, whole, unless there is less of it now."""
    end = (BEGIN + 100) * SECOND
    other = RecordingSession(name="day", from_microseconds=BEGIN * SECOND)
    with pytest.raises(JobError, match="another recording"):
        write_recording(recording, other, frames(), until_microseconds=end)
    same = RecordingSession(name="night", from_microseconds=BEGIN * SECOND)
    write_recording(recording, same, frames(seconds=range(170)), until_microseconds=end)
    with pytest.raises(JobError, match="the folder stays"):
        write_recording(recording, same, frames(), until_microseconds=end)
    assert len(list(read_frames(recording))) == 170
    assert [path.name for path in recording.parent.iterdir() if path.name[0] == "."] == []
