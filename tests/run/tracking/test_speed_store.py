"""What is learnt about the workers outlives the job, and nothing in the file can stop the next."""

from __future__ import annotations

import os

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.node import EmulateConfig
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.messages import WorkerId, WorkersJoined
from hetero_hvd.run.records import run_files
from hetero_hvd.run.tracking.speed_store import CurveStore
from tests.module_clock import give_clock

ALPHA = WorkerId("alpha", 0)
CURVE = SpeedProfile(
    model=StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.002),
    largest_share=64,
    smallest_share=2,
)


def joined(device="A100", model="Net 1f"):
    """A rendezvous of one worker."""
    return WorkersJoined(
        rendezvous_id=1,
        workers=(ALPHA,),
        applied_steps=0,
        global_batch_size=64,
        capacities=(-1,),
        prefetch_steps=0,
        devices=(device,),
        model=model,
    )


def saved(folder, **more):
    """A store into which the curve was saved."""
    made = CurveStore(folder / "curves.json", [NodeConfig(name="alpha")])
    made.load(joined(**more))
    made.save({ALPHA: CURVE})


def loaded(folder, *, emulate=None, **more):
    """What another job finds."""
    node = NodeConfig(name="alpha", emulate=emulate)
    return CurveStore(folder / "curves.json", [node]).load(joined(**more))


def test_a_curve_comes_back_for_the_same_worker_device_and_model(tmp_path):
    """Another model, another device or another emulated speed is another curve."""
    saved(tmp_path)
    assert loaded(tmp_path) == {ALPHA: CURVE}
    assert loaded(tmp_path, model="Net 2f") == {}
    assert loaded(tmp_path, device="T4") == {}
    assert loaded(tmp_path, emulate=EmulateConfig(relative_speed=0.5)) == {}


def test_jobs_add_to_the_file(tmp_path):
    """One job's curves do not replace another's."""
    saved(tmp_path)
    saved(tmp_path, model="Other")
    assert loaded(tmp_path) == {ALPHA: CURVE}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".curves.json.lock", "curves.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"overhead_seconds": "x"}}',
        b"\x00\xff",
        b'{"\xff": {}}',
        b'{"a": {"overhead_seconds": ' + b"[" * 100_000,
        b'{"a": ' * 100_000,
    ],
)
def test_a_file_that_cannot_be_read_is_ignored_and_then_replaced(tmp_path, content):
    """At worst a job starts with even shares."""
    (tmp_path / "curves.json").write_bytes(content)
    assert loaded(tmp_path) == {}
    saved(tmp_path)
    assert loaded(tmp_path) == {ALPHA: CURVE}


def test_the_loop_waits_for_no_other_job(tmp_path, monkeypatch, caplog):
    """It is done without a word at the next time, at the latest at the end, which waits."""
    store = CurveStore(tmp_path / "curves.json", [NodeConfig(name="alpha")])
    store.load(joined())
    slept = []
    give_clock(monkeypatch, run_files, sleep=slept.append)

    def meanwhile(content):
        store.save({ALPHA: CURVE}, wait_seconds=0.0)
        assert not slept
        assert not caplog.records
        store.save({ALPHA: CURVE}, wait_seconds=0.01)
        assert slept
        assert "another process is changing it" in caplog.text
        return content

    run_files.change_file(tmp_path / "curves.json", meanwhile)
    assert loaded(tmp_path) == {}
    store.save({ALPHA: CURVE}, wait_seconds=0.0)
    assert loaded(tmp_path) == {ALPHA: CURVE}


def test_senseless_curves_are_ignored(tmp_path):
    """A cost of zero or a share of zero would break the balancer."""
    wrong = SpeedProfile(
        model=StepTimeModel(overhead_seconds=0.0, seconds_per_sample=0.0), largest_share=1
    )
    made = CurveStore(tmp_path / "curves.json", [NodeConfig(name="alpha")])
    made.load(joined())
    made.save({ALPHA: wrong})
    assert loaded(tmp_path) == {}


def test_what_others_put_beside_the_run_does_no_harm(tmp_path):
    """The folder above may be everybody's: nobody waits at a pipe, no link is followed."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".curves.json.{os.getpid()}").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "curves.json")
    saved(tmp_path)
    assert loaded(tmp_path) == {}
    assert (tmp_path / "victim").read_text() == "precious"
