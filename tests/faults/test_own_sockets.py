"""What a script has connected stays connected, whatever happens to the connections of Horovod."""

import json
from pathlib import Path

import pytest

from tests.kit.fault_job import FaultJob
from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("own_sockets.py")
KINDS = {
    "before init",
    "after init",
    "between steps",
    "in a dataset",
    "in a thread",
    "socketpair",
    "unix",
    "listening",
}


def test_a_recovery_leaves_the_sockets_of_the_script_alone(tmp_path):
    """Of every kind and age, also those opened by a thread while Horovod opened its own."""
    nodes = ("alpha", "beta", "gamma")
    settings = {"max_restarts": 0, "balance": False}
    job = FaultJob(tmp_path, nodes, settings=settings, command=[str(SCRIPT), str(tmp_path)])
    assert job.wait() == 0, job.console
    assert "beta:0 was ended by SIGKILL" in job.console
    for name in ("alpha-0", "gamma-0"):
        found = json.loads((tmp_path / f"works-{name}.json").read_text())
        assert found["works"] == dict.fromkeys(KINDS, True)
        assert found["in_thread"] > 1
    wait_until(lambda: not processes_of(tmp_path), 10, "the end of all processes")
