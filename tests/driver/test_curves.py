"""What is learnt about the workers outlives the job, and nothing in the file can stop the next."""

from __future__ import annotations

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.core.known import Curve
from hetero_hvd.core.step_time import StepTimeModel
from hetero_hvd.driver.curves import CurveStore
from hetero_hvd.messages import WorkerId

ALPHA = WorkerId("alpha", 0)
CURVE = Curve(
    model=StepTimeModel(overhead_seconds=0.01, seconds_per_sample=0.002), largest_share=64
)


def store(folder, *, command=("train.py",), devices=()):
    """The store of a job."""
    node = NodeConfig(name="alpha", devices=devices)
    return CurveStore(folder / "curves.json", [node], command)


def test_a_curve_comes_back_for_the_same_worker_device_and_command(tmp_path):
    """Another script, other arguments or another device are another training."""
    store(tmp_path).save({ALPHA: CURVE})
    assert store(tmp_path).load() == {ALPHA: CURVE}
    assert store(tmp_path, command=("train.py", "--big")).load() == {}
    assert store(tmp_path, devices=(0,)).load() == {}


def test_jobs_add_to_the_file(tmp_path):
    """One job's curves do not replace another's."""
    store(tmp_path).save({ALPHA: CURVE})
    store(tmp_path, command=("other.py",)).save({ALPHA: CURVE})
    assert store(tmp_path).load() == {ALPHA: CURVE}
    assert [path.name for path in tmp_path.iterdir()] == ["curves.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"a": 1}', '{"a": {"overhead_seconds": "x"}}', "\x00\xff"]
)
def test_a_file_that_cannot_be_read_is_ignored_and_then_replaced(tmp_path, content):
    """At worst a job starts with even shares."""
    (tmp_path / "curves.json").write_text(content)
    assert store(tmp_path).load() == {}
    store(tmp_path).save({ALPHA: CURVE})
    assert store(tmp_path).load() == {ALPHA: CURVE}


def test_senseless_curves_are_ignored(tmp_path):
    """A cost of zero or a share of zero would break the balancer."""
    wrong = Curve(
        model=StepTimeModel(overhead_seconds=0.0, seconds_per_sample=0.0), largest_share=1
    )
    store(tmp_path).save({ALPHA: wrong})
    assert store(tmp_path).load() == {}
