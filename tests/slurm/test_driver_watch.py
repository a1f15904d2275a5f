"""A driver that is lost is noticed from another node."""

import subprocess
import sys
import threading

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.slurm import driver_watch
from hetero_hvd.slurm.driver_watch import DriverWatch
from tests.leftovers import wait_until

SRUN = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def node(programs):
    """A node on which srun runs what it should."""
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    return NodeConfig(name="fast2", launcher="srun")


@pytest.mark.process
def test_a_job_that_is_over_is_not_requeued(node, programs):
    """However long it takes, and however often its driver was heard."""
    watch = DriverWatch([node], "12", "fast1", silence_seconds=1.2)
    watch.start()
    threading.Event().wait(2.5)
    watch.close()
    assert not (programs / "scontrol.requeued").exists()


CODE = """
import time
from hetero_hvd.config import NodeConfig
from hetero_hvd.slurm.driver_watch import DriverWatch
node = NodeConfig(name="fast2", launcher="srun")
DriverWatch([node], "12", "fast1", silence_seconds=60.0).start()
print("started", flush=True)
time.sleep(60)
"""


@pytest.mark.process
@pytest.mark.usefixtures("node")
def test_a_driver_that_is_killed_is_requeued(programs):
    """It had no time to say that it is over; Slurm says that its node has failed."""
    (programs / "squeue.jobs").write_text("12|12|RUNNING|10:00|fast2\n")
    vector = [sys.executable, "-c", CODE]
    with subprocess.Popen(vector, stdout=subprocess.PIPE) as driver:
        driver.stdout.readline()
        threading.Event().wait(0.5)
        driver.kill()
    requeued = programs / "scontrol.requeued"
    wait_until(requeued.exists, 10, "the order to requeue")
    assert requeued.read_text() == "12\n"
    (programs / "squeue.jobs").write_text("")  # it starts again; so the watch ends, too


@pytest.mark.process
def test_another_node_takes_over(node, programs, monkeypatch):
    """Whatever ends the step."""
    monkeypatch.setattr(driver_watch, "RETRY_SECONDS", 0.1)
    text = f"#!/bin/sh\necho $* >> {programs}/srun.called\nexit 1\n"
    (programs / "srun").write_text(text)
    other = NodeConfig(name="slow1", launcher="srun")
    watch = DriverWatch([node, other], "12", "fast1", silence_seconds=0.6)
    watch.start()
    called = programs / "srun.called"
    wait_until(lambda: called.exists() and "slow1" in called.read_text(), 10, "the other node")
    watch.close()
    assert called.read_text().splitlines()[0].count("--nodelist=fast2") == 1


def test_without_another_node_nobody_watches():
    """Then the loss of the driver's node is that of the job, which Slurm requeues itself."""
    watch = DriverWatch([], "12", "fast1", silence_seconds=1.0)
    watch.start()
    watch.close()
