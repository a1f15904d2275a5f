"""What each store of checkpoints promises: a new one needs a rig here, and passes.

The second half is what the worker promises whatever the store is, and is tried on all of them.
"""

import errno
import hashlib
import importlib
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import cache
from itertools import product

import fsspec
import msgspec
import pytest
import torch

from hetero_hvd.data import file_system
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.worker.recovery.checkpoints.object_store import ObjectStore
from hetero_hvd.worker.recovery.checkpoints.registry import STORES, store_at
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints, CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.store import Manifest
from hetero_hvd.worker.recovery.replica import Replica, Unreadable
from tests.kit.object_servers import object_server

from .store_rigs import PACKAGES, RIGS, FolderRig

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Those of object stores that run, each since it was asked for."""
    with ExitStack() as stack:
        yield cache(
            lambda scheme: stack.enter_context(
                object_server(scheme, tmp_path_factory.mktemp(scheme))
            )
        )


@pytest.fixture(params=RIGS, ids=lambda scheme: scheme or "folder")
def rig(request, servers, tmp_path, monkeypatch):
    """One of the stores."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
        for name, value in servers(request.param).environment.items():
            monkeypatch.setenv(name, value)
    return RIGS[request.param](tmp_path)


@pytest.fixture
def store(rig):
    """A store without checkpoints."""
    return store_at(rig.location)


def test_each_store_has_a_rig():
    """What a location may say is what is tried here."""
    assert STORES.keys() == RIGS.keys()


ONE, TWO = "step-000000000001-one", "step-000000000002-one"


def writing(payload=b"payload", **facts):
    """What writes that payload."""
    facts = {"run": "one", "applied_steps": 1} | facts

    def write(file):
        file.write(payload)
        digest = hashlib.sha256(payload).hexdigest()
        return Manifest(sha256=digest, num_bytes=len(payload), **facts)

    return write


def test_what_is_put_is_listed_and_read(store, rig):
    """Payload and manifest, by whoever opens the store; its place tells where it is."""
    assert store.put(ONE, writing(b"a" * 5_000_000, metrics={"loss": 1.5}), series="one")
    assert store.put(TWO, writing(b""), series="one")
    again = store_at(rig.location)
    found = dict(again.listed())
    assert found.keys() == {ONE, TWO}
    assert found[ONE].metrics == {"loss": 1.5}
    assert (again.read(ONE), again.read(TWO)) == (b"a" * 5_000_000, b"")
    assert again.place(ONE) == f"{rig.shown}/{ONE}"
    assert rig.remains() == []


def test_a_payload_may_be_read_while_it_is_written(store):
    """Its digest is made of what is in the file."""

    def write(file):
        file.write(b"abc")
        file.seek(0)
        assert file.read() == b"abc"
        return writing(b"abc")(file)

    assert store.put(ONE, write, series="one")


def test_nothing_is_listed_before_it_is_complete(store, rig):
    """Not while it is written; nor what another writer is at."""

    def write(file):
        assert store.listed() == []
        assert store.put(TWO, writing(), series="rated-one")
        assert [name for name, _ in store_at(rig.location).listed()] == [TWO]
        return writing()(file)

    assert store.put(ONE, write, series="one")
    assert sorted(name for name, _ in store.listed()) == [ONE, TWO]


@pytest.mark.parametrize("error", [OSError, MemoryError, RuntimeError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_nothing(store, rig, error):
    """The error is the writer's."""

    def write(file):
        file.write(b"half")
        raise error

    with pytest.raises(error):
        store.put(ONE, write, series="one")
    assert store.listed() == []
    assert rig.remains() == []


KILLED = """
import os, signal, sys
from hetero_hvd.data import file_system
from hetero_hvd.worker.recovery.checkpoints.object_store import PAYLOAD, ObjectStore
from hetero_hvd.worker.recovery.checkpoints.registry import store_at
def write(file):
    file.write(b"half" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
store_at(sys.argv[1]).put(sys.argv[2], write, series=sys.argv[3])
"""


@pytest.mark.process
def test_a_writer_that_is_killed_leaves_nothing_listed(tmp_path):
    """What it has left goes with the next checkpoint of its series, and only that."""
    rig = FolderRig(tmp_path)
    for series in ("one", "rated-one", "two"):
        words = [sys.executable, "-c", KILLED, rig.location, ONE, series]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    store = store_at(rig.location)
    assert store.listed() == []
    assert len(rig.remains()) == 3
    assert store.put(ONE, writing(), series="one")
    assert [name for name, _ in store.listed()] == [ONE]
    assert sorted(path.name.split(".")[1] for path in rig.remains()) == ["rated-one", "two"]


KILLED_BEFORE_THE_MANIFEST = """
import hashlib, os, signal, sys
from hetero_hvd.worker.recovery.checkpoints.object_store import ObjectStore
from hetero_hvd.worker.recovery.checkpoints.store import Manifest
def write(file):
    file.write(b"whole")
    digest = hashlib.sha256(b"whole").hexdigest()
    return Manifest(run="one", applied_steps=1, sha256=digest, num_bytes=5)
ObjectStore._create = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ObjectStore(sys.argv[1]).put(sys.argv[2], write, series=sys.argv[3])
"""


@pytest.mark.process
@pytest.mark.parametrize("rig", ["s3", "gs"], indirect=True)
def test_a_payload_without_a_manifest_is_no_checkpoint(rig, store):
    """It goes with the next checkpoint of its series, and only that."""
    for series in ("one", "two"):
        words = [sys.executable, "-c", KILLED_BEFORE_THE_MANIFEST, rig.location, ONE, series]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert store.listed() == []
    assert len(rig.remains()) == 2
    with pytest.raises(Unreadable):
        store.read(ONE)
    assert store.put(TWO, writing(applied_steps=2), series="one")
    assert [name for name, _ in store.listed()] == [TWO]
    assert [path.rpartition("/")[2].partition(".")[0] for path in rig.remains()] == ["two"]


@pytest.mark.parametrize("rig", ["s3", "gs"], indirect=True)
def test_a_store_that_cannot_make_objects_only_where_there_are_none(rig, monkeypatch):
    """Some servers do not know that condition: what is there stays all the same."""
    store = store_at(rig.location)
    pipe_file = store._files.pipe_file
    refused = []

    def unconditional(key, content, mode="overwrite"):
        if mode == "create":
            refused.append(key)
            raise NotImplementedError
        pipe_file(key, content)

    monkeypatch.setattr(store._files, "pipe_file", unconditional)
    assert store.put(ONE, writing(b"first"), series="one")
    monkeypatch.setattr(store, "_has_manifest", lambda _: False)  # another one was a bit later
    assert not store.put(ONE, writing(b"second"), series="rated-one")
    assert store.read(ONE) == b"first"
    assert len(refused) == 2


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("scheme", ["s3", pytest.param("gs", marks=pytest.mark.matrix)])
def test_a_server_that_hangs_or_is_gone_costs_no_training(
    scheme, fault, tmp_path, monkeypatch, caplog
):
    """What cannot be written is told; whether there are any checkpoints is not known then."""
    pytest.importorskip(PACKAGES[scheme])
    monkeypatch.setattr(file_system, "OPTIONS", SHORT)
    with object_server(scheme, tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class(scheme).clear_instance_cache()
        rig = RIGS[scheme](tmp_path)
        checkpoints = keeper(rig)
        save(checkpoints, 1)
        os.kill(server.pid, fault)
        save(checkpoints, 2)
        with pytest.raises(JobError, match="which checkpoints there are is not known: ") as error:
            keeper(rig, training(1)).load_newest()
    fsspec.get_filesystem_class(scheme).clear_instance_cache()
    assert "the checkpoint of step 2 cannot be written: " in caplog.text
    assert "secret" not in caplog.text + str(error.value)
    assert checkpoints.kept().startswith("which checkpoints there are is not known: ")


SHORT = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 0.5,
            "read_timeout": 0.5,
            "retries": {"total_max_attempts": 1},
        }
    },
    "gs": {"requests_timeout": 0.5},
}
"""As `file_system.OPTIONS`, for servers that do not answer."""


def test_what_a_store_needs_is_named(monkeypatch):
    """Where its package is not installed."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    known = importlib.import_module("fsspec.registry")._registry
    monkeypatch.delitem(known, "s3", raising=False)
    with pytest.raises(JobError) as error:
        ObjectStore("s3://bucket/run")
    line = str(error.value)
    assert line.startswith("checkpoints at s3://bucket/run: ")
    assert line.endswith(": pip install 'hetero_hvd[s3]'")
    assert "\n" not in line


def test_what_is_there_already_stays(store, rig):
    """Names are given once: the state of a step is the same, whoever writes it."""
    assert store.put(ONE, writing(b"first"), series="one")
    assert not store.put(ONE, writing(b"second", metrics={"loss": 1.0}), series="rated-one")
    assert store.read(ONE) == b"first"
    assert dict(store.listed())[ONE].metrics == {}
    assert rig.remains() == []


def test_metrics_are_added(store):
    """To those that are there; what is not there cannot have any."""
    store.put(ONE, writing(metrics={"loss": 1.0, "f1": None}), series="one")
    store.add_metrics(ONE, {"accuracy": 0.5, "f1": 0.25})
    (found,) = store.listed()
    assert found[1].metrics == {"loss": 1.0, "accuracy": 0.5, "f1": 0.25}
    with pytest.raises(OSError, match="one"):
        store.add_metrics(TWO, {"loss": 1.0})


def test_metrics_that_could_not_be_read_back_are_not_added(store):
    """The manifest is as before."""
    store.put(ONE, writing(metrics={"loss": 1.0}), series="one")
    with pytest.raises(msgspec.DecodeError):
        store.add_metrics(ONE, {"loss": True})
    assert dict(store.listed())[ONE].metrics == {"loss": 1.0}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_manifest_that_cannot_be_read_costs_its_checkpoint_only(store, rig, content):
    """The others are listed."""
    for name in (ONE, TWO):
        store.put(name, writing(), series="one")
    rig.spoil_manifest(ONE, content)
    assert [name for name, _ in store.listed()] == [TWO]


def test_what_is_removed_is_gone(store):
    """It is no fault if it is not there."""
    store.put(ONE, writing(), series="one")
    for _ in range(2):
        store.remove(ONE)
    assert store.listed() == []
    with pytest.raises(Unreadable):
        store.read(ONE)


def test_a_store_that_is_not_there_is_empty(store):
    """Nobody has written yet."""
    assert store.listed() == []
    with pytest.raises(Unreadable):
        store.read(ONE)
    store.remove(ONE)


def test_a_store_that_refuses_says_so(rig):
    """As an error of the system, for which the training does not end."""
    store = store_at(rig.refused)
    with pytest.raises(OSError, match=r"."):
        store.put(ONE, writing(), series="one")
    with suppress(OSError):  # a bucket that is not there is no empty one
        assert store.listed() == []


@pytest.mark.parametrize("key", ["folder", "resume"])
def test_a_location_of_no_store_is_one_line(tmp_path, key):
    """It says what there is."""
    settings = {"folder": str(tmp_path), "run": "one"} | {key: "s4://bucket/run"}
    with pytest.raises(JobError) as error:
        Checkpoints(CheckpointSettings(**settings), training())
    line = str(error.value)
    assert line.startswith(
        "checkpoints at s4://bucket/run: no such store; must be a path or begin "
    )
    assert line.endswith(" or begin with file:// or begin with s3:// or begin with gs://")


@pytest.mark.parametrize("path", ["out/checkpoints", "/data/a://b", "C:/x", "./s3://x", ""])
def test_a_path_is_a_folder(path):
    """Whatever else it looks like."""
    assert type(store_at(path)) is STORES[""]


def training(seed=0):
    """A model, as a replica."""
    torch.manual_seed(seed)
    return Replica({"model": torch.nn.Linear(4, 3)})


def keeper(rig, replica=None, trainer=1, **settings):
    """Checkpoints in a store."""
    wanted = CheckpointSettings(**{"folder": rig.location, "run": "one", **settings})
    return Checkpoints(wanted, replica or training(), trainer)


def save(checkpoints, *arguments):
    """Write one and wait for it."""
    checkpoints.save(*arguments)
    checkpoints.wait()


def test_a_training_goes_on_from_the_newest_of_the_last_run(rig):
    """Not from the longest; where it is is said."""
    save(keeper(rig), 900)
    replica = training(1)
    second = keeper(rig, replica, run="0")
    for step in (7, 8):
        save(second, step)
    place = store_at(rig.location).place("step-000000000008-0")
    assert second.kept() == f"the newest checkpoint is of step 8: {place}"
    fresh = training(2)
    third = keeper(rig, fresh, folder=f"{rig.location}-new", run="3", resume=rig.location)
    assert third.load_newest() == place
    assert fresh.checksum() == replica.checksum()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda payload: payload[:50], "it is damaged: 50 bytes where "),
        (lambda payload: payload[:-1] + b"!", "it is damaged: its bytes are not those"),
        (lambda _: b"", "it is damaged: 0 bytes where "),
    ],
)
def test_a_damaged_one_is_refused_and_the_one_before_is_taken(rig, caplog, content, words):
    """It is said which one, and why."""
    replica = training()
    checkpoints = keeper(rig, replica)
    save(checkpoints, 1)
    first = replica.checksum()
    with torch.no_grad():
        replica._parts["model"].weight += 1
    save(checkpoints, 2)
    rig.spoil(TWO, content(store_at(rig.location).read(TWO)))
    fresh = training(1)
    assert keeper(rig, fresh).load_newest()
    assert fresh.checksum() == first
    place = store_at(rig.location).place(TWO)
    assert f"{place} is not taken: {words}" in caplog.text
    assert "trying the one before" in caplog.text


ANSWERS = {
    "a hiccup of a network file system": (OSError(errno.EIO, "Input/output error"), TryAgainError),
    "a server's 503": (OSError("InternalError: please try again"), TryAgainError),
    "no answer in time": (TimeoutError("no answer in 30 s"), TryAgainError),
    "no permission": (PermissionError(errno.EACCES, "Permission denied"), JobError),
}
"""What is answered instead of a content, and the error that it is to a training that goes on."""

PARTS = ("manifest", "payload", "list")


def test_an_older_one_is_taken_only_where_the_newest_is_not_there(rig, monkeypatch):
    """What merely cannot be read would cost the steps between: it is said, and whether to wait."""
    replica = training()
    checkpoints = keeper(rig, replica)
    save(checkpoints, 1)
    first = replica.checksum()
    with torch.no_grad():
        replica._parts["model"].weight += 1
    save(checkpoints, 2)
    new = {"folder": f"{rig.location}-new", "run": "two", "resume": rig.location}
    fresh = training(1)
    before = fresh.checksum()
    again = [keeper(rig, fresh, **settings) for settings in ({}, new)]
    for what, (error, expected), each in product(PARTS, ANSWERS.values(), again):
        with monkeypatch.context() as patch:
            rig.fail(patch, TWO, what, error)
            with pytest.raises(expected) as found:
                each.load_newest()
        assert type(found.value) is expected
        assert "\n" not in str(found.value)
        assert fresh.checksum() == before
    with monkeypatch.context() as patch:
        rig.fail(patch, TWO, "list", OSError("503"))
        with pytest.raises(TryAgainError):
            again[1].why_not_resumed()
    for what, each in product(PARTS[:2], again):
        with monkeypatch.context() as patch:
            rig.fail(patch, TWO, what, FileNotFoundError(errno.ENOENT, "No such file"))
            assert each.load_newest()
        assert fresh.checksum() == first


def test_the_newest_and_the_best_are_kept(rig, store):
    """Of each run and trainer; a step's metrics count, whoever wrote its state first."""
    checkpoints = keeper(rig, keep=2, best="-loss")
    others = keeper(rig, keep=1, trainer=2)
    for step, loss in ((1, 5.0), (2, 1.0), (3, 4.0), (4, 3.0)):
        save(checkpoints, step)
        if checkpoints.is_best({"loss": loss}):
            save(checkpoints, step, {"loss": loss})
        save(others, step)
    kept = sorted(name for name, _ in store.listed())
    names = [f"step-{step:012d}-one" for step in (2, 3, 4)]
    assert kept == [*names, "step-000000000004-one-trainer2"]


def test_each_trainer_goes_on_from_its_own(rig):
    """None takes the other's state."""
    replicas = {number: training(number) for number in (1, 2)}
    for number, replica in replicas.items():
        save(keeper(rig, replica, number), 5)
    for number, replica in replicas.items():
        fresh = training(3)
        assert keeper(rig, fresh, number).load_newest()
        assert fresh.checksum() == replica.checksum()
    assert not keeper(rig, training(3), 3).load_newest()


def test_what_cannot_be_kept_costs_no_training(rig, caplog):
    """It is said, how often in a row, and tried again."""
    checkpoints = keeper(rig, folder=rig.refused)
    for _ in range(2):
        save(checkpoints, 3)
    assert "the checkpoint of step 3 cannot be written: " in caplog.text
    assert "2 failed in a row" in caplog.text
    words = "no checkpoint was written yet", "which checkpoints there are is not known: "
    assert checkpoints.kept().startswith(words)
