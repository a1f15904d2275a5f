"""What each store of checkpoints promises: a new one needs a rig here, and passes.

The second half is what the worker promises whatever the store is, and is tried on all of them.
"""

import hashlib
import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress

import fsspec
import msgspec
import pytest

from hetero_hvd.data import file_system
from hetero_hvd.errors import JobError
from hetero_hvd.worker.recovery.checkpoints import folder_store
from hetero_hvd.worker.recovery.checkpoints.folder_store import FolderStore
from hetero_hvd.worker.recovery.checkpoints.object_store import ObjectStore
from hetero_hvd.worker.recovery.checkpoints.registry import STORES, store_at
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints, CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.store import Manifest
from hetero_hvd.worker.recovery.replica import Unreadable
from tests.kit.object_servers import object_server

from .store_rigs import PACKAGES, RIGS, FolderRig, keeper, save, training

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs


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


@pytest.mark.parametrize("moment", ["while it writes", "before its manifest"])
@pytest.mark.parametrize(("slow", "quick"), [(ONE, TWO), (TWO, ONE), (ONE, ONE)])
def test_two_writers_of_a_series_leave_each_other_alone(store, rig, slow, quick, moment):
    """One that was rank 0 keeps its state while the next leader writes: each in both orders."""
    other = store_at(rig.location)
    payload, changed = writing(b"the same"), pytest.MonkeyPatch()

    def meanwhile():
        changed.undo()
        assert other.put(quick, payload, series="one")

    def write(file):
        if moment == "while it writes":
            meanwhile()
        return payload(file)

    if moment == "before its manifest":
        kind, call = type(store), PUTS_THE_MANIFEST[type(store)]
        module, name = (kind, call) if hasattr(kind, call) else (folder_store, call)
        real = getattr(module, name)
        changed.setattr(module, name, lambda *given: (meanwhile(), real(*given))[1])
    assert store.put(slow, write, series="one") or slow == quick
    found = {name: store.read(name) for name, _ in store.listed()}
    assert found == dict.fromkeys((slow, quick), b"the same")
    assert rig.remains() == []


PUTS_THE_MANIFEST = {FolderStore: "_write_manifest", ObjectStore: "_create"}


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
    """It is said, once, and tried again."""
    checkpoints = keeper(rig, folder=rig.refused)
    for _ in range(2):
        save(checkpoints, 3)
    assert caplog.text.count("the checkpoint of step 3 cannot be written: ") == 1
    words = "no checkpoint was written yet", "which checkpoints there are is not known: "
    assert checkpoints.kept().startswith(words)
