"""A device that ails leaves the pool, and what it was used for goes on elsewhere."""

from __future__ import annotations

import pytest

from hetero_hvd.core.view.queued.job_progress import FailingNode
from hetero_hvd.hub.queue.devices.failing_devices import FailingDevices
from tests.fake_nvml.library import build, environment
from tests.hub.queue.queue_rig import QueueHub, until
from tests.hub.queue.test_job_queue import proves
from tests.kit.fault_job import trace_in

HOT, DEAD = (
    FailingNode(words="is hot", is_lasting=False),
    FailingNode(words="dead", is_lasting=True),
)
AFTER = {
    "before it is tried": ([(0, HOT)], "e", 599, True),
    "when it is tried": ([(0, HOT)], "e", 600, False),
    "the second time": ([(0, HOT), (700, HOT)], "e", 1899, True),
    "again": ([(0, HOT), (700, HOT)], "e", 1900, False),
    "what does not pass": ([(0, DEAD)], "e", 1e9, True),
    "a new entry": ([(0, DEAD)], "other", 1, False),
}


@pytest.mark.parametrize(("told", "entry", "now", "expected"), AFTER.values(), ids=AFTER)
def test_when_a_device_is_back(tmp_path, told, entry, now, expected):
    """Also for the next hub."""
    failing = FailingDevices(tmp_path / "failing.json")
    for at, what in told:
        assert failing.note("a", "e", what, at, 8)
        assert not failing.note("a", "e", what, at, 8)
    for each in (failing, FailingDevices(tmp_path / "failing.json")):
        assert each.is_failing("a", entry, now) == expected


def test_a_quarter_leaves_at_most(tmp_path):
    """And one in any case."""
    failing = FailingDevices(tmp_path / "failing.json")
    assert [failing.note(name, "e", HOT, 0, 8) for name in "abc"] == [True, True, False]
    assert failing.note("c", "e", HOT, 601, 8)
    assert FailingDevices(tmp_path / "other.json").note("a", "e", HOT, 0, 1)


@pytest.mark.timeout(400)
def test_a_job_leaves_a_hot_gpu(tmp_path, monkeypatch):
    """Its guard may not let its last worker go; the queue gives it another device."""
    library = build(tmp_path)
    told = environment(library, told=tmp_path)
    for name in told:
        if "NVML" in name or name.startswith("LD_"):
            monkeypatch.setenv(name, told[name])
    monkeypatch.setenv("HETERO_HVD_SAMPLES_FOLDER", str(tmp_path / "samples"))
    nodes = [{"name": name, "devices": [index]} for index, name in enumerate(("alpha", "beta"))]
    guard = {"temperature": 87, "for_seconds": 1, "webhook": "http://127.0.0.1:1/s3cret"}
    hub = QueueHub(tmp_path, nodes, guard=guard)
    try:
        hub.start()
        job = hub.submit("job", script={"epochs": 40, "step_seconds": 0.05})
        hub.wait_for_step("job", 8, job)
        (before,) = hub.job(job)["devices"]
        (tmp_path / ("temperature" if before == "alpha:0" else "temperature1")).write_text("91")
        until(lambda: hub.job(job)["attempt"] == 2, lambda: hub.log_of(job))
        (after,) = hub.job(job)["devices"]
        assert {before, after} == {"alpha:0", "beta:0"}
        conditions = {each["device"]: each["condition"] for each in hub.order("list")["devices"]}
        assert conditions == {before: "failing", after: "ready"}
        assert hub.wait_for_end(job) == f"{job} has ended: it is done"
        steps = [line[1] for line in trace_in(hub.folder / "job")]
        assert len(steps) == len(set(steps))  # none was taken twice
        assert max(steps) == 320
        assert proves(hub.folder / "job", 40)
        assert "s3cret" not in (tmp_path / "hub" / "queue" / "nodes" / f"{job}.yaml").read_text()
    finally:
        hub.close()
