"""Workers whose software does not fit are refused before they train; clocks that are off are told.

Another version is put in front of the real one by a folder with its metadata, another clock by a
library that is loaded before the C library.
"""

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.driver.conftest import write_nodes

pytestmark = pytest.mark.process
CLOCK = Path(__file__).parents[2] / "fake_clock" / "clock.c"


def node(name, **environment):
    """A node's name, and further entries of nodes.yaml."""
    return f"{name}, env: {json.dumps(environment)}" if environment else name


def other_version(folder, package, version):
    """The environment of a node on which a package says that it is of another version."""
    metadata = folder / f"{package}-{version}" / f"{package}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    own = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(metadata.parents[1]), *own.split(os.pathsep)])}


def test_a_horovod_that_does_not_fit_stops_the_job_before_it_starts(start_job, tmp_path):
    """Exit code 2, the table, and the node with what it has; no step was taken."""
    odd = node("beta", **other_version(tmp_path, "horovod", "0.27.0"))
    job = start_job(names=("alpha", odd, "gamma"))
    assert job.wait() == 2
    (row,) = [line for line in job.output if line.startswith("hetero-hvd: beta:0 ")]
    assert row.split()[3] == "0.27.0"
    reason = "cannot work: beta:0: horovod 0.27.0, others 0.28.1"
    assert any(reason in line for line in job.output)
    assert job.summary()["steps"] == 0


def test_a_newcomer_that_does_not_fit_is_refused_and_the_others_go_on(start_job, tmp_path):
    """It is let go once, with the reason; the job ends well without it."""
    job = start_job("--progress-seconds", "0.2", names=("alpha", "gamma"), script=("40",))
    job.wait_for(r"step [1-9]\d*  epoch")
    odd = node("beta", **other_version(tmp_path, "horovod", "0.27.0"))
    write_nodes(job.nodes_file, ("alpha", "gamma", odd))
    job.wait_for(r"beta:0 is refused \(cannot work: beta:0: horovod 0\.27\.0, others 0\.28\.1")
    assert "horovod 0.27.0" in job.status()["quarantined"]["beta:0"]
    assert job.wait() == 0
    summary = job.summary()
    assert summary["steps"] == 320
    assert len([line for line in job.output if "is refused" in line]) == 1
    assert not any("3 workers train together" in line for line in job.output)


def test_another_torch_and_a_wrong_clock_are_told_and_train(start_job, tmp_path):
    """A warning with the table for the one; for the other how far it is off, to milliseconds."""
    library = tmp_path / "clock.so"
    vector = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, CLOCK, "-ldl"]
    subprocess.run(vector, check=True)
    odd = node("beta", LD_PRELOAD=str(library), **other_version(tmp_path, "torch", "2.1.0"))
    job = start_job(names=("alpha", odd))
    job.wait_for(r"the nodes' software differs:")
    job.wait_for(r"note: beta:0: torch 2\.1\.0, others 2\.\S+: results differ in the last bits")
    assert job.wait() == 0
    assert job.summary()["replicas_equal"] is True
    told = [line for line in job.output if "clock" in line]
    assert [line.split(";")[0] for line in told] == [
        "the clock of node beta is 100.0 s ahead of the driver's"
    ]
    with closing(sqlite3.connect(job.folder / "out" / "run.sqlite")) as records, records:
        rows = records.execute("SELECT body FROM events WHERE kind = 'ClockMeasured'").fetchall()
    records.close()
    found = {tuple(event["worker"]): event for event in (json.loads(body) for (body,) in rows)}
    for worker, offset in ((("alpha", 0), 0.0), (("beta", 0), 100.0)):
        event = found[worker]
        assert abs(event["offset_seconds"] - offset) <= event["uncertainty_seconds"] + 1e-5
        assert event["uncertainty_seconds"] < 1.0
