"""Devices that leave the pool: their owner comes. Jobs shrink or go on elsewhere."""

from __future__ import annotations

import sys
import time

import pytest

from tests.hub.queue.queue_rig import QueueHub, until
from tests.hub.queue.test_job_queue import proves
from tests.kit.fault_job import trace_in

LONG = {"epochs": 25, "step_seconds": 0.03}


@pytest.fixture
def hub(tmp_path):
    """A hub with two devices, of which the first is another one's; its owner is a file."""
    calm = {"guest": True, "guest_idle_seconds": 1, "guest_processors": 100_000}
    owned = {"name": "alpha", "devices": [], **calm, "guest_file": str(tmp_path / "owner")}
    found = QueueHub(tmp_path, [owned, {"name": "beta", "devices": []}])
    found.start()
    yield found
    found.close()


def condition(hub):
    """Of the owned device."""
    return hub.order("list")["devices"][0]["condition"]


@pytest.mark.timeout(400)
def test_an_owner_has_his_device_back(hub):
    """A job of two devices shrinks to one; one that may use no other goes on later."""
    job = hub.submit("job", max_devices=2, script=LONG)
    until(
        lambda: any(line[3] == 2 for line in trace_in(hub.folder / "job")), lambda: hub.log_of(job)
    )
    began = time.monotonic()
    (hub.folder / "owner").touch()
    hub.wait_for_text(job, "alpha:0 has left")
    sys.stdout.write(f"shrunk after {time.monotonic() - began:.2f} s\n")
    assert hub.job(job)["devices"] == ["beta:0"]
    other = hub.submit("other", priority="high", needs=["node==alpha"], script=LONG)
    assert hub.job(other)["why"].endswith("needs 1 (1 device is used by its owner)")
    (hub.folder / "owner").unlink()
    hub.wait_for_step("other", 8, other)
    (hub.folder / "owner").touch()
    until(lambda: condition(hub) == "guest_busy", lambda: hub.order("list"))
    until(
        lambda: all(mark.parent.name != str(other) for mark in hub.runners()),
        lambda: hub.log_of(other),
    )
    (hub.folder / "owner").unlink()
    assert hub.wait_for_end(other) == f"{other} has ended: it is done"
    assert hub.wait_for_end(job) == f"{job} has ended: it is done"
    assert [hub.job(each)["attempt"] for each in (job, other)] == [1, 2]
    assert proves(hub.folder / "job", 25)
    assert proves(hub.folder / "other", 25)
