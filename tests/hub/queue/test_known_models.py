"""What one job has measured of its model decides where the next one begins."""

from __future__ import annotations

import pytest

from hetero_hvd.discovery.submission.pinned_script import script_of
from hetero_hvd.hub.queue.queue_store import QueueStore
from tests.hub.queue.queue_rig import QueueHub, until

NODES = [
    {"name": "alpha", "devices": [], "relative_speed": 1, "emulate": {"seconds_per_sample": 4e-3}},
    {"name": "beta", "devices": [], "relative_speed": 0.5, "emulate": {"seconds_per_sample": 1e-3}},
]
SCRIPTS = {
    "a script": (["train.py", "--lr", "1"], "train.py"),
    "with its interpreter": (["/usr/bin/python3", "-u", "train.py"], "train.py"),
    "a module": (["python", "-m", "lab.train"], "lab.train"),
    "nothing else": (["python", "-u"], "python"),
}


@pytest.mark.parametrize(("command", "script"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_which_script_it_is(command, script):
    """Whatever its arguments."""
    assert script_of(command) == script


def test_the_second_job_begins_on_the_device_that_is_fast_for_its_model(tmp_path):
    """Also if nodes.yaml says otherwise, and the hub was killed in between."""
    hub = QueueHub(tmp_path, NODES)
    try:
        hub.start()
        long = {"epochs": 500, "step_seconds": 0.01}
        first = hub.submit("first", min_devices=1, max_devices=2, script=long)
        known = QueueStore(tmp_path / "hub")
        until(
            lambda: [set(each.rates) for each in known.facts().models] == [{"alpha", "beta"}],
            lambda: (known.facts(), hub.log_of(first)),
        )
        (model,) = known.facts().models
        assert model.rates["alpha"].value < model.rates["beta"].value
        hub.order("cancel", job=first)
        hub.kill()
        hub.start()
        second = hub.submit("second", script={"epochs": 1})
        assert hub.job(second)["devices"] == ["beta:0"]
    finally:
        hub.close()
