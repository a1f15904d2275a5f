"""GPUs that ail on purpose: their workers leave before they fail, and come back. No sample is lost.

The GPUs are those of a stand-in for the driver's library, which files tell what to do; workers,
Horovod, supervisors and samplers are real.
"""

import json
import re
import socket
import sqlite3
import urllib.request

import pytest

from tests.fake_nvml.library import build, environment
from tests.kit.fault_job import write_nodes
from tests.leftovers import wait_until

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

EPOCHS = 60
DONE = "done"
"""A file: from then on the training hurries to its end."""

SECONDS = 40.0
GUARD = {"temperature": 87, "for_seconds": 1, "return_seconds": 1, "throttled": "off"}


def nodes(*devices, **more):
    """Local nodes with these GPUs, one slot each; further keys are those of the first."""
    entries = [
        {"name": name, "slots": 1, "devices": [] if device is None else [device]}
        for name, device in zip(("alpha", "beta", "gamma"), devices, strict=False)
    ]
    entries[0] |= more
    return entries


@pytest.fixture
def gpu(tmp_path_factory):
    """Sets what a GPU does; its environment is that of a job."""
    folder = tmp_path_factory.mktemp("gpu")
    library = build(tmp_path_factory.mktemp("nvml"))

    def tell(**figures):
        for name, value in figures.items():
            (folder / f".{name}").write_text(str(value))
            (folder / f".{name}").rename(folder / name)

    tell.environment = environment(library, told=folder)
    return tell


@pytest.fixture
def guarded(start, gpu):
    """Starts a job with a guard, and waits until all its workers train and are sampled."""

    def begin(*devices, guard=GUARD, min_np=1, **more):
        told = {name: gpu.environment[name] for name in gpu.environment if "NVML" in name}
        told |= {name: gpu.environment[name] for name in ("LD_LIBRARY_PATH", FOLDER)}
        found = nodes(*devices)
        job = start(
            nodes=found,
            epochs=EPOCHS,
            settings={"guard": guard, "min_np": min_np},
            environment=told,
            patient_from=10,
            patient_until=DONE,
            **more,
        )
        job.wait_for(f"{len(found)} workers train together")
        job.wait_for_step(10)
        wait_until(lambda: metrics(job, "gpu_temperature_celsius"), SECONDS, "samples")
        return job

    return begin


FOLDER = "HETERO_HVD_SAMPLES_FOLDER"


def finish(job):
    """Let it end."""
    (job.folder / DONE).touch()
    assert job.wait() == 0, job.console


def metrics(job, name, **labels):
    """Values of a metric that have these labels."""
    url = re.search(r"page: (\S+)/", job.console)[1]
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310 - our own
        lines = answer.read().decode().splitlines()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return [
        float(line.split()[-1])
        for line in lines
        if line.startswith(f"hetero_hvd_{name}{{") and all(label in line for label in wanted)
    ]


def reports(job):
    """What the guard has done, as it is recorded."""
    with sqlite3.connect(job.folder / "out" / "run.sqlite") as catalogue:
        rows = catalogue.execute("SELECT body FROM events WHERE kind = 'GuardReported'").fetchall()
    catalogue.close()
    events = [json.loads(body) for (body,) in rows]
    return [(event["what"], event["node"], event["reason"]) for event in events]


def wait_for_a_sample_of_alpha(job):
    """One that is newer than all there are."""
    (before,) = metrics(job, "node_sample_timestamp_seconds", node="alpha")
    wait_until(
        lambda: metrics(job, "node_sample_timestamp_seconds", node="alpha") > [before + 2],
        SECONDS,
        "samples of a node without a worker",
    )


def files_with(job, text):
    """Names of all files of a job that hold a text."""
    written = [path for path in job.folder.rglob("*") if path.is_file()]
    return [path.name for path in written if text in path.read_bytes()]


REPORTS = [
    ("refused", "alpha", "temperature"),
    ("drained", "alpha", "temperature"),
    ("refused", "beta", "temperature"),
    ("drained", "alpha", "ecc"),
    ("drained", "alpha", "xid"),
    ("ended", "beta", ""),
    ("returned", "alpha", ""),
]


def test_ailing_gpus_leave_and_come_back(guarded, gpu):
    """Neither with fewer than `min_np` left, nor more than a quarter at once; that is told instead.

    A drained GPU is heard of though no worker of its node runs. A program's errors are its own; off
    the bus it stays away, though cool, until its entry changes. A dead receiver holds up nobody,
    and what its URL holds is in no file of the run.
    """
    with socket.create_server(("127.0.0.1", 0)) as dead:
        url = f"http://127.0.0.1:{dead.getsockname()[1]}/s3cret"
        gpu(xid=31)
        job = guarded(0, 1, None, guard=GUARD | {"webhook": url})
        found = nodes(0, 1, None)
        gpu(xid=13)
        wait_until(lambda: metrics(job, "gpu_xid", device="0") == [13.0] * 3, SECONDS, "XID 13")
        write_nodes(job.nodes_file, found, **job.settings | {"min_np": 3})
        gpu(temperature=91, temperature1=60)
        job.wait_for("guard: GPU 0 of alpha is at 91 °C, and was at 87 °C or more for 1 s")
        job.wait_for("alpha:0 should leave, but 2 workers would be left, min_np is 3")
        with dead.accept()[0] as told:
            assert told.recv(2**16).startswith(b"POST /s3cret HTTP/1.1\r\n")
        job.wait_for(
            "guard: webhook at 127.0.0.1 does not answer (the connection was closed); it is tried"
        )
        write_nodes(job.nodes_file, found, **job.settings)
        job.wait_for("2 workers train together")
        gpu(temperature1=95)
        job.wait_for("beta:0 should leave, but 1 of 3 devices is drained, and no more than a quar")
        assert metrics(job, "guard_drained_devices") == [1.0]
        assert metrics(job, "guard_refused_devices") == [1.0]
        assert metrics(job, "guard_episodes_total", reason="temperature") == [2.0]
        job.wait_for("alpha:0 has left")
        wait_for_a_sample_of_alpha(job)
        gpu(ecc=3)
        job.wait_for("GPU 0 of alpha has 2 more errors of its memory that could not be corrected")
        gpu(xid=79)
        job.wait_for(
            "GPU 0 of alpha reports XID 79 (it has fallen off the bus): it stays away until"
        )
        gpu(temperature=60, temperature1=60)
        job.wait_for("guard: GPU 1 of beta is well again")
        write_nodes(job.nodes_file, nodes(0, 1, None, price_per_hour=1.0), **job.settings)
        job.wait_for("guard: GPU 0 of alpha is tried again: the entry of alpha has changed")
        job.wait_for("3 workers train together", times=2)
        finish(job)
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "beta:0", "gamma:0"))
    assert reports(job) == REPORTS
    assert job.console.count("is drained by the guard") == 1
    assert files_with(job, b"s3cret") == ["nodes.yaml"]


@pytest.mark.matrix
def test_a_hot_gpu_is_drained_and_back_when_it_is_cool(guarded, gpu):
    """It is heard of meanwhile, though no worker of its node runs; a dead receiver holds up nobody.

    What the receiver's URL holds is in no file of the run.
    """
    with socket.create_server(("127.0.0.1", 0)) as dead:
        url = f"http://127.0.0.1:{dead.getsockname()[1]}/s3cret"
        job = guarded(0, 1, None, guard=GUARD | {"webhook": url}, min_np=2)
        gpu(temperature=91)
        job.wait_for("guard: GPU 0 of alpha is at 91 °C, and was at 87 °C or more for 1 s")
        job.wait_for("alpha:0 has left")
        told = dead.accept()[0]
        assert told.recv(2**16).startswith(b"POST /s3cret HTTP/1.1\r\n")
        wait_for_a_sample_of_alpha(job)
        assert metrics(job, "guard_drained_devices") == [1.0]
        assert metrics(job, "guard_episodes_total", reason="temperature") == [1.0]
        assert job.console.count("workers train together") == 2
        gpu(temperature=60)
        job.wait_for("guard: GPU 0 of alpha is well again: alpha:0 may come back")
        job.wait_for("3 workers train together", times=2)
        finish(job)
        told.close()
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "beta:0", "gamma:0"))
    assert reports(job) == [("drained", "alpha", "temperature"), ("returned", "alpha", "")]
    assert job.console.count("alpha:0 is drained by the guard") == 1
    assert files_with(job, b"s3cret") == ["nodes.yaml"]


@pytest.mark.matrix
def test_errors_of_a_gpu(guarded, gpu):
    """A program's are its own; of memory it comes back; off the bus it stays until nodes.yaml says.

    The entry in nodes.yaml is changed: it is tried again.
    """
    gpu(xid=31)
    job = guarded(0, 1, None)
    gpu(xid=13)
    wait_until(lambda: metrics(job, "gpu_xid", device="0") == [13.0] * 3, SECONDS, "XID 13")
    gpu(ecc=3)
    job.wait_for("GPU 0 of alpha has 2 more errors of its memory that could not be corrected")
    job.wait_for("guard: GPU 0 of alpha is well again: alpha:0 may come back")
    job.wait_for("3 workers train together", times=2)
    gpu(xid=79)
    job.wait_for("GPU 0 of alpha reports XID 79 (it has fallen off the bus): alpha:0 leaves")
    job.wait_for("2 workers train together", times=2)
    write_nodes(job.nodes_file, nodes(0, 1, None, price_per_hour=1.0), **job.settings)
    job.wait_for("guard: GPU 0 of alpha is tried again: the entry of alpha has changed")
    job.wait_for("3 workers train together", times=3)
    finish(job)
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "beta:0", "gamma:0"))
    assert [(what, reason) for what, _, reason in reports(job)] == [
        ("drained", "ecc"),
        ("returned", ""),
        ("drained", "xid"),
        ("returned", ""),
    ]


@pytest.mark.matrix
def test_a_hot_room_is_an_alert(guarded, gpu):
    """Neither fewer than `min_np` are left, nor is more than a quarter away; it is told instead."""
    job = guarded(0, 1, None)
    found = nodes(0, 1, None)
    write_nodes(job.nodes_file, found, **job.settings | {"min_np": 3})
    gpu(temperature=91, temperature1=60)
    job.wait_for("alpha:0 should leave, but 2 workers would be left, min_np is 3")
    write_nodes(job.nodes_file, found, **job.settings)
    job.wait_for("alpha:0 has left")
    gpu(temperature1=95)
    job.wait_for("beta:0 should leave, but 1 of 3 devices is drained, and no more than a quarter")
    finish(job)
    assert_exact(job, epochs=EPOCHS, workers=("beta:0", "gamma:0"))
    assert reports(job) == [
        ("refused", "alpha", "temperature"),
        ("drained", "alpha", "temperature"),
        ("refused", "beta", "temperature"),
    ]
    assert job.console.count("has left") == 1
