"""The folder in which a reader of the pages gives their commands, with all that these name."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec

from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.messages import DeviceSample, NodeSampled
from hetero_hvd.run.recordings.folder import write_recording
from hetero_hvd.run.recordings.frames import RecordedFrame
from tests.kit.screens.shown_run import history, write_run

NODES = "nodes:\n  - {name: alpha, devices: []}\n  - {name: beta, devices: []}\n"
TRACE = """\
job,user,submit_seconds,work,devices,max_devices,rate:v100,rate:t4
resnet,ann,0,7200,1,4,1.0,0.3
bert,bob,600,9000,2,4,2.0,0.5
"""
SCRIPT = Path(__file__).with_name("train.py")
TRAINED = ("train.py", "digits.py")
"""Scripts that the pages name; here they are one that trains for about a second."""
RECORDED_SECONDS = 200


def make(folder: Path) -> None:
    """Two runs, a recording, nodes, scripts and a trace of a queue.

    Args:
        folder: Is made.
    """
    for name, age_seconds in (("first", 1000.0), ("second", 0.0)):
        events = history(time.time() - age_seconds, name=name, num_exchanges=60, is_over=True)
        write_run(folder / "runs" / name, list(events))
    _record(folder / "hub" / "recordings" / "night")
    (folder / "nodes.yaml").write_text(NODES)
    (folder / "trace.csv").write_text(TRACE)
    for name in TRAINED:
        shutil.copy(SCRIPT, folder / name)


def _record(folder: Path) -> None:
    """A node with a GPU that is idle every fourth second."""
    begin = time.time_ns() // 1000 - RECORDED_SECONDS * 10**6
    frames = []
    for number in range(1, RECORDED_SECONDS + 1):
        gpu = DeviceSample(
            index=0, uuid="GPU-a", name="H", use_ratio=(number % 4) / 3, power_watts=100.0
        )
        sample = NodeSampled(node="a", cpu_use_ratio=0.5, devices=(gpu,))
        content = msgspec.msgpack.encode(sample)
        frames.append(RecordedFrame("a", "boot", Recorded(number, begin + number * 10**6, content)))
    session = RecordingSession(name=folder.name, from_microseconds=begin)
    folder.parent.mkdir(parents=True)
    write_recording(
        folder, session, frames, until_microseconds=begin + (RECORDED_SECONDS + 1) * 10**6
    )
