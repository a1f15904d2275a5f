"""What a slot says of its worker."""

from types import SimpleNamespace

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.pulse import Look, Pulse
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import WorkerId

PROCESS = SimpleNamespace(look=lambda: None)
LOCAL, SSH = NodeConfig(name="a"), NodeConfig(name="a", address="10.0.0.2", slots=1)
WAITS = {
    "ready": ({"ready": object()}, (), None),
    "not wanted any more": ({"is_wanted": False}, (), None),
    "no device": ({"num_refusals": 1}, (), "waiting for a free device"),
    "not started": ({}, (), "waiting to be started"),
    "started here": ({"process": PROCESS}, (), "waiting for the process"),
    "started elsewhere": ({"process": PROCESS, "node": SSH}, (), "waiting for ssh"),
    "its script computes": ({"process": PROCESS}, (0.0, 1.0), "loading the script"),
    "its script does nothing": ({"process": PROCESS}, (1.0, 1.0), "waiting in the script"),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_keeps_a_worker_from_training(case):
    """In words for people; none where nothing does."""
    more, seconds, expected = WAITS[case]
    pulse = Pulse()
    for at, used in enumerate(seconds):
        pulse.told(Look(at_seconds=99.0 + at / 2, state="R", own_seconds=used, all_seconds=used))
    given = {"worker": WorkerId("a", 0), "node": LOCAL, "output": SimpleNamespace(pulse=pulse)}
    assert Slot(**given | more).waits_for(100.0) == expected
