"""Who may order what of the queue, and as whom a job runs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

from hetero_hvd.discovery.submission.queue_link import QueueOrder, SubmittedJob
from hetero_hvd.errors import UserError
from hetero_hvd.hub.queue import queue_orders
from hetero_hvd.hub.queue.job_queue import JobQueue
from hetero_hvd.hub.queue.queue_cluster import QueueCluster
from hetero_hvd.hub.queue.queue_orders import QueueOrders
from hetero_hvd.hub.queue.queue_service import user_of
from hetero_hvd.security.local_sockets import PeerUser
from tests.hub.queue.queue_rig import TWO, until
from tests.kit.checkout import CHECKOUT

OWN = PeerUser(os.geteuid(), pwd.getpwuid(os.geteuid()).pw_name)
NOBODY = PeerUser(65534, "nobody")
SECRET = "hunter2-hunter2"  # noqa: S105 - of nobody


def packed(**files):
    """A working tree with these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{name}.py")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


def submission(tree, **more):
    """An order for a job of a script."""
    facts = {
        "command": ["train.py", "--token", SECRET],
        "python": sys.executable,
        "environment": dict(os.environ) | {"API_TOKEN": SECRET},
        "tree": hashlib.sha256(tree).hexdigest(),
        "tree_bytes": len(tree),
    }
    return QueueOrder(name="submit", submitted=SubmittedJob(**(facts | more)))


@pytest.fixture
def queue(tmp_path):
    """One with two devices, in this process, that starts nothing: all jobs wait for a third."""
    (tmp_path / "cluster.yaml").write_text(json.dumps({"nodes": TWO}))
    cluster = QueueCluster(tmp_path / "cluster.yaml", {})
    return JobQueue(tmp_path, cluster, time.monotonic, lambda _uid: None)


@pytest.fixture
def orders(queue):
    """Orders to it; `nobody` is no operator."""
    return QueueOrders(queue, ["op"])


WAITS = {"min_devices": 3, "max_devices": 3}


def test_only_owner_and_operators_act_on_a_job(orders, queue):
    """Others may list it and ask why it waits, and see no secret in that."""
    tree = packed(train="")
    done = orders.act(OWN, submission(tree, **WAITS), tree)
    assert done == {"job": 1, "why": "1 waits: default has 2 devices, and it needs 3"}
    queue.kept["1"] = queue.kept["1"]._replace(uid=4711)
    owner, stranger = PeerUser(4711, "owner"), PeerUser(4712, "stranger")
    for name in ("cancel", "hold", "release", "move", "logs"):
        with pytest.raises(UserError, match=r"^job 1: is of .*, not of stranger$"):
            orders.act(stranger, QueueOrder(name=name, job=1))
    assert orders.act(stranger, QueueOrder(name="why", job=1)) == done["why"]
    assert SECRET not in repr(orders.act(stranger, QueueOrder(name="list")))
    assert orders.act(owner, QueueOrder(name="hold", job=1)).startswith("1 is held")
    assert orders.act(PeerUser(4713, "op"), QueueOrder(name="release", job=1)) == done["why"]
    assert orders.act(owner, QueueOrder(name="cancel", job=1)) == "1 has ended: it was cancelled"


def test_an_order_is_about_several_jobs_at_once_or_none(orders, queue):
    """Each says what it does then; of an array some may have ended, but none is another one's."""
    tree = packed(train="")
    for _ in range(4):
        orders.act(OWN, submission(tree, **WAITS), tree)
    orders.act(OWN, QueueOrder(name="cancel", job=2))
    assert orders.act(OWN, QueueOrder(name="hold", jobs=[1, 2, 3, 3])) == [
        "1 is held: `hetero-hvd queue release 1` lets it start",
        "2 has ended: it was cancelled",
        "3 is held: `hetero-hvd queue release 3` lets it start",
    ]
    queue.kept["4"] = queue.kept["4"]._replace(uid=4711)
    refused = {
        "job 4: is of": (PeerUser(4712, "stranger"), QueueOrder(name="release", jobs=[4])),
        "job 9: there is none": (OWN, QueueOrder(name="release", jobs=[1, 9])),
        "job '1': no pool 'prod'": (OWN, QueueOrder(name="move", jobs=[1, 3], pool="prod")),
        "why: say which job": (OWN, QueueOrder(name="why", jobs=[1, 3])),
    }
    for words, (user, order) in refused.items():
        with pytest.raises(UserError) as error:
            orders.act(user, order)
        assert str(error.value).startswith(words)
    assert [name for name, job in queue.state.jobs.items() if job.is_held] == ["1", "3"]


PAIR = {"min_devices": 2, "max_devices": 2}
REFUSED = {
    "an unknown order": (QueueOrder(name="dance"), b"", "'dance' is no order to the queue; "),
    "no job": (QueueOrder(name="hold"), b"", "hold: say which job, by its number"),
    "an unknown job": (QueueOrder(name="hold", job=7), b"", "job 7: there is none of that number"),
    "another tree": (submission(packed(train="")), b"x", "submit: the working tree is not what"),
    "an unknown pool": (submission(b"", pool="prod"), b"", "no pool 'prod'; there are"),
    "an unknown need": (submission(b"", needs=["fast"]), b"", "needs: found 'fast', must be a "),
    "too few": (submission(b"", min_devices=2), b"", "job 1: max_devices must be at least min_"),
    "an unknown job before": (submission(b"", after=[9]), b"", "job '1': it is to follow '9'"),
    "an index twice": (submission(b"", array=[1, 1]), b"", "submit: array: an index is there tw"),
    "a limit of no array": (submission(b"", array_limit=2), b"", "submit: array_limit: needs an "),
    "an idle training": (submission(b"", idle_limit_seconds=9), b"", "submit: idle_limit: is of "),
    "a shrinking command": (
        submission(b"", is_command=True, max_devices=2),
        b"",
        "submit: a command (--devices) has ",
    ),
    "a command with settings": (
        submission(b"", is_command=True, settings={"grain": "1"}),
        b"",
        "submit: a command (--de",
    ),
    "a command on many nodes": (
        submission(b"", is_command=True, **PAIR),
        b"",
        "submit: a command on several devices ne",
    ),
    "a folder of its own": (submission(b"", settings={"output": "x"}), b"", "settings: 'output'"),
    "a number of workers": (
        submission(b"", settings={"min_np": "2"}),
        b"",
        "settings: 'min_np' is",
    ),
    "no truth": (submission(b"", settings={"balance": "x"}), b"", "settings: balance: found 'x', "),
    "no number": (
        submission(b"", settings={"grain": "x"}),
        b"",
        "settings: grain: found 'x', must",
    ),
}


@pytest.mark.parametrize(("order", "tree", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_in_one_line(orders, queue, order, tree, words):
    """And nothing of it is kept."""
    with pytest.raises(UserError) as refused:
        orders.act(OWN, order, tree)
    assert str(refused.value).startswith(words)
    assert len(refused.value.lines) == 1
    assert not queue.kept
    assert not queue.state.jobs


def test_a_user_has_so_many_jobs_at_most(orders, monkeypatch):
    """Others submit as before."""
    monkeypatch.setattr(queue_orders, "MAX_JOBS", 1)
    tree = packed(train="")
    orders.act(OWN, submission(tree, **WAITS), tree)
    with pytest.raises(UserError, match=r"^submit: \S+ has 1 jobs that have not ended already$"):
        orders.act(OWN, submission(tree, **WAITS), tree)
    if not os.geteuid():
        assert orders.act(NOBODY, submission(tree, **WAITS), tree)["job"] == 2


def test_a_full_disk_takes_no_job(orders, queue, monkeypatch):
    """Who submits hears of it, and nothing is there afterwards; the next one is taken."""
    tree = packed(train="")

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(queue._store, "write", full)
        with pytest.raises(OSError, match="No space"):
            orders.act(OWN, submission(tree, **WAITS), tree)
    assert not queue.kept
    assert not queue.state.jobs
    assert orders.act(OWN, submission(tree, **WAITS), tree)["job"] == 1


PYTHON = Path("/usr/bin/python3")
DRIVER = """
import os, sys
print("runs as", os.getuid(), os.getgroups(), "with", sys.argv[-1], open("train.py").read())
"""


@pytest.mark.skipif(os.geteuid() != 0 or not PYTHON.exists(), reason="needs root, and a Python")
def test_a_job_runs_as_who_has_submitted_it():
    """With what was pinned, in a folder of its own, that nobody else can enter."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's folders are for one user alone
    try:
        place.chmod(0o711)
        package = place / "packages" / "hetero_hvd"
        shutil.copytree(CHECKOUT / "hetero_hvd", package, copy_function=shutil.copyfile)
        (package / "__main__.py").write_text(DRIVER)  # only the runner is ours here
        (place / "cluster.yaml").write_text(json.dumps({"nodes": TWO}))
        cluster = QueueCluster(place / "cluster.yaml", {})
        queue = JobQueue(place, cluster, time.monotonic, user_of)
        orders = QueueOrders(queue)
        tree = packed(train="pinned")
        pinned = {"python": str(PYTHON), "environment": {"PYTHONPATH": str(place / "packages")}}
        orders.act(NOBODY, submission(tree, **pinned), tree)
        until(lambda: queue.look() or "1" in queue.state.ended, lambda: "its end")
        until(lambda: queue.look() or not queue.is_leaving("1"), lambda: "its process")
        told = orders.act(NOBODY, QueueOrder(name="logs", job=1))
        group = pwd.getpwuid(NOBODY.uid).pw_gid
        assert told.text == f"runs as {NOBODY.uid} [{group}] with {SECRET} pinned\n"
        folder = place / "queue" / "jobs" / "1"
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (NOBODY.uid, 0o700)
        assert queue.state.ended["1"].has_succeeded
    finally:
        shutil.rmtree(place)


def test_a_hub_that_is_not_root_runs_nobody_else_s_job(orders, monkeypatch):
    """It says who could."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    tree = packed(train="")
    with pytest.raises(UserError, match=r"runs as user 4711 and starts no jobs of nobody"):
        orders.act(NOBODY, submission(tree), tree)
