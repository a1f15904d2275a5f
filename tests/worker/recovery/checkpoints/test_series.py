"""Checkpoints on disk: whole, checked, bounded in number, and never in the way."""

import hashlib
import json
import math
import os
import random
import subprocess
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import CheckpointSettings, NodeSettings
from hetero_hvd.probes.machine.memory import MemoryUse
from hetero_hvd.worker.data.position import Order, Position
from hetero_hvd.worker.micro_batch.memory_meter import MemoryMeter
from hetero_hvd.worker.micro_batch.sizing import MicroBatchSizer
from hetero_hvd.worker.recovery.checkpoints.keeping import Keeping
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica, packed


def training(seed=0):
    """A model with momentum in its optimizer, as one replica."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    return Replica({"model": model, "optimizer": optimizer})


def keeper(folder, replica=None, **settings):
    """Checkpoints in a folder."""
    wanted = CheckpointSettings(folder=str(folder), **{"run": "one", **settings})
    return Checkpoints(wanted, replica or training())


def save(checkpoints, *arguments):
    """Write one and wait for it."""
    checkpoints.save(*arguments)
    checkpoints.wait()


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    """Model, optimizer and every generator of random numbers."""
    one, other = training(0), training(1)
    save(keeper(tmp_path, one), 7)
    drawn = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002, S311
    assert keeper(tmp_path, other).load_newest()
    assert other.checksum() == one.checksum()
    assert drawn == (random.random(), np.random.rand(), float(torch.rand(())))  # noqa: NPY002, S311


def test_training_goes_on_while_it_is_written(tmp_path, monkeypatch):
    """What is written is the state of that moment, whatever a slow disk takes and training does."""
    disk = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: disk.wait(10) and fsync(fd))
    replica = training()
    before = replica.checksum()
    checkpoints = keeper(tmp_path, replica, every_seconds=1e-9)
    checkpoints.save(1)
    assert not checkpoints.is_due()  # a writer that is busy is not disturbed
    with torch.no_grad():
        replica._parts["model"].weight += 1
    disk.set()
    checkpoints.wait()
    assert checkpoints.is_due()
    fresh = training(1)
    keeper(tmp_path, fresh).load_newest()
    assert fresh.checksum() == before


def test_it_is_written_where_no_thread_can_be_started(tmp_path, monkeypatch):
    """A script may keep its loop until Python ends, which then starts no more threads."""

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    replica = training()
    checkpoints = keeper(tmp_path, replica)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        checkpoints.save(3)
    assert not checkpoints.is_writing
    fresh = training(1)
    assert keeper(tmp_path, fresh).load_newest()
    assert fresh.checksum() == replica.checksum()


def test_each_trainer_of_a_script_goes_on_from_its_own(tmp_path):
    """Two trainings one after the other write into one folder: none takes the other's state."""
    found = {}
    for number, seed in ((1, 0), (2, 1)):
        wanted = CheckpointSettings(folder=str(tmp_path), run="one", keep=1)
        found[number] = Checkpoints(wanted, replica := training(seed), number), replica.checksum()
        for step in (5, 6):
            save(found[number][0], step)
    assert len(list(tmp_path.glob("step-*"))) == 2
    for settings in ({"run": "one"}, {"run": "two", "resume": str(tmp_path)}):
        for number, (_, checksum) in found.items():
            wanted = CheckpointSettings(folder=str(tmp_path), **settings)
            replica = training(2)
            assert Checkpoints(wanted, replica, number).load_newest()
            assert replica.checksum() == checksum
        assert not Checkpoints(wanted, training(2), 3).load_newest()


def test_another_run_in_the_same_store_is_not_the_one_to_resume(tmp_path):
    """It has kept the newest state there, and one that can be read where those meant cannot."""
    for run, step in (("one", 3), ("one-again", 4), ("other", 9)):
        save(keeper(tmp_path / "store", run=run), step)
    known = {"resume": str(tmp_path / "store"), "resume_runs": ("one", "one-again")}
    fresh = keeper(tmp_path / "own", run="new", **known)
    assert "step-000000000004" in fresh.load_newest()
    for path in (tmp_path / "store").glob("step-*-one*"):
        (path / "state.pt").write_bytes(b"")
    assert keeper(tmp_path / "own", run="new", **known).load_newest() is None
    assert "no worker has found a checkpoint" in fresh.why_not_resumed()


class Evil:
    """Would end the test if it were unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def signed(path, content):
    """Put something else into a checkpoint, with a manifest that says that it belongs there."""
    (path / "state.pt").write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {"sha256": hashlib.sha256(content).hexdigest(), "num_bytes": len(content)}
    (path / "manifest.json").write_text(json.dumps(manifest))


DAMAGES = ["torn", "flipped", "no manifest", "no state", "bad manifest"]
DAMAGES += ["poisoned", "unreadable", "empty", "no dict", "unknown kind"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over(tmp_path, caplog, damage):
    """The one before is taken, and it is said which one is not, without torch's advice."""
    replica = training()
    checkpoints = keeper(tmp_path, replica)
    save(checkpoints, 1)
    first = replica.checksum()
    with torch.no_grad():
        replica._parts["model"].weight += 1
    save(checkpoints, 2)
    newest = max(tmp_path.glob("step-*"))
    state, manifest = newest / "state.pt", newest / "manifest.json"
    content = state.read_bytes()
    {
        "torn": lambda: state.write_bytes(content[:50]),
        "flipped": lambda: state.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        "no manifest": manifest.unlink,
        "no state": state.unlink,
        "bad manifest": lambda: manifest.write_text("{"),
        "poisoned": lambda: signed(newest, packed({"model": Evil()})),
        "unreadable": lambda: signed(newest, b"no state at all"),
        "empty": lambda: signed(newest, b""),
        "no dict": lambda: signed(newest, packed([1, 2])),
        "unknown kind": lambda: signed(newest, packed({"hetero_hvd.kind": "x", "parts": 1})),
    }[damage]()
    fresh = training(1)
    assert keeper(tmp_path, fresh).load_newest()
    assert fresh.checksum() == first
    assert newest.name in caplog.text
    assert "weights_only" not in caplog.text
    assert "another worker" not in caplog.text


UNREADABLE = {
    "the only one": ({1}, 1, "start without --resume to train from the beginning"),
    "the second": ({1, 2}, 2, "of the script's trainer 2 in .* delete those of"),
    "the first": ({1, 2}, 1, "of the script's trainer 1 in .* delete those of"),
    "none of the first any more": ({2}, 1, ""),
    "the second had not begun": ({1}, 2, ""),
    "none of any": (set(), 1, "start without --resume"),
}


@pytest.mark.parametrize(("kept", "trainer", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_resume_is_refused_where_what_is_there_cannot_be_read(
    tmp_path, monkeypatch, kept, trainer, words
):
    """It is said of which trainer: what others have kept is still of use."""
    for number in kept:
        checkpoints = Checkpoints(
            CheckpointSettings(folder=str(tmp_path), run="one"), training(), number
        )
        save(checkpoints, 3)
    settings = CheckpointSettings(folder=str(tmp_path), run="two", resume=str(tmp_path))
    monkeypatch.setattr(
        "hetero_hvd.worker.recovery.checkpoints.keeping.next_number", lambda: trainer
    )
    parts = training(), Position(), Order(), SimpleNamespace()
    keeping = Keeping(*parts, lambda: True, settings=settings)
    if not words:
        keeping.check_found(is_found=False)
        return
    with pytest.raises(JobError, match=words):
        keeping.check_found(is_found=False)


@pytest.mark.parametrize(
    ("was", "own", "outcome"),
    [
        ("", "", "silent"),
        ("", "avx2", "said"),
        ("avx2", "avx2", "silent"),
        ("avx512", "avx2", "refused"),
        ("avx2", "", "silent"),
    ],
)
def test_a_reproducible_run_keeps_to_one_instruction_set(tmp_path, caplog, was, own, outcome):
    """What was written without one is told of, as bits of its steps are not known."""
    save(keeper(tmp_path, cpu_capability=was), 7)
    other = keeper(tmp_path, cpu_capability=own)
    if outcome == "refused":
        with pytest.raises(UserError, match="go on with --cpu-capability avx512"):
            other.load_newest()
    else:
        assert other.load_newest()
    assert ("no instruction set is recorded with it" in caplog.text) == (outcome == "said")


def test_the_newest_and_the_best_are_kept(tmp_path):
    """Whatever comes after it, the best by the metric stays."""
    checkpoints = keeper(tmp_path, keep=2, best="-loss")
    for step, loss in ((1, 5.0), (2, 1.0), (3, 4.0), (4, 3.0)):
        if checkpoints.is_best({"loss": loss}) or step > 2:
            save(checkpoints, step, {"loss": loss})
    kept = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("step-*"))
    assert kept == [2, 3, 4]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("periodic_first", [True, False])
def test_a_metric_that_is_no_finite_number_costs_no_checkpoint(tmp_path, periodic_first, value):
    """It is left out, and never the best; a periodic checkpoint of the same step stays good."""
    checkpoints = keeper(tmp_path, best="-loss")
    assert not checkpoints.is_best({"loss": value})
    assert checkpoints.is_best({"loss": 0.5})
    if periodic_first:
        save(checkpoints, 5)
    save(checkpoints, 5, {"loss": 0.5, "perplexity": value})
    (path,) = tmp_path.glob("step-*")
    assert json.loads((path / "manifest.json").read_text())["metrics"] == {"loss": 0.5}
    assert keeper(tmp_path, training(1)).load_newest() == str(path)


def test_a_manifest_in_which_a_metric_is_null_is_read(tmp_path):
    """As those of earlier versions; it is not the best, whatever else there is."""
    checkpoints = keeper(tmp_path, keep=1, best="loss")
    for step in (5, 6, 7):
        save(checkpoints, step, {"loss": 1.0 - step})
        path = max(tmp_path.glob("step-*"))
        manifest = json.loads((path / "manifest.json").read_text())
        if step != 6:
            manifest["metrics"]["loss"] = None
        (path / "manifest.json").write_text(json.dumps(manifest))
        assert keeper(tmp_path, training(1)).load_newest() == str(path)
    save(checkpoints, 8)
    kept = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("step-*"))
    assert kept == [6, 8]


def test_a_manifest_that_cannot_be_read_back_takes_no_good_ones_place(tmp_path, caplog):
    """It is said, and what was there stays."""
    checkpoints = keeper(tmp_path)
    save(checkpoints, 5)
    save(checkpoints, 5, {"loss": True})  # no number in JSON
    assert "the checkpoint of step 5 cannot be written: " in caplog.text
    assert keeper(tmp_path, training(1)).load_newest()


@pytest.mark.parametrize("periodic_first", [True, False])
def test_the_best_is_kept_where_a_periodic_one_is_of_the_same_step(tmp_path, periodic_first):
    """Its metrics are not lost, whichever is written first."""
    checkpoints = keeper(tmp_path, keep=1, best="accuracy")
    saves = [(5,), (5, {"accuracy": 0.9})]
    for arguments in saves if periodic_first else reversed(saves):
        save(checkpoints, *arguments)
    save(checkpoints, 6)
    assert sorted(path.name for path in tmp_path.glob("*")) == [
        "step-000000000005-one",
        "step-000000000006-one",
    ]


def test_the_last_run_in_a_folder_is_taken_not_the_longest(tmp_path):
    """Whoever began anew in a folder goes on with that."""
    replica = training()
    save(keeper(tmp_path, replica), 900)
    with torch.no_grad():
        replica._parts["model"].weight += 1
    wanted = replica.checksum()
    second = keeper(tmp_path, replica, run="0")
    for step in (7, 8):
        save(second, step)
    fresh = training(1)
    assert keeper(tmp_path / "new", fresh, run="3", resume=str(tmp_path)).load_newest()
    assert fresh.checksum() == wanted
    assert second.kept() == f"the newest checkpoint is of step 8: {tmp_path}/step-{8:012d}-0"


def test_what_cannot_be_kept_costs_no_training(tmp_path, caplog):
    """A state that cannot be loaded back is not written, and it is said where it is."""

    class Held:
        def state_dict(self):
            return {"best": lambda: 1}

    save(keeper(tmp_path, Replica({"held": Held()})), 4)
    assert "the checkpoint of step 4 cannot be written: extra_state['held']: best: " in caplog.text


@pytest.mark.parametrize(("metrics", "cleared"), [({}, ""), ({"a": 1.0}, "rated-")])
def test_half_a_checkpoint_of_a_killed_writer_is_cleared_away(tmp_path, metrics, cleared):
    """The next one to be written does it; another run's and another writer's are left alone."""
    made = [(kind, run) for kind in ("", "rated-") for run in ("one", "two")]
    names = [f".{kind}{run}.step-{3:012d}-{run}.77" for kind, run in made]
    for name in names:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    save(keeper(tmp_path), 4, metrics)
    names.remove(f".{cleared}one.step-{3:012d}-one.77")
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(names)


def test_another_runs_checkpoints_are_taken_on_request_only(tmp_path):
    """A folder that is used again does not continue what was meant to start anew."""
    save(keeper(tmp_path), 7)
    assert not keeper(tmp_path, run="two").load_newest()
    assert keeper(tmp_path / "new", run="two", resume=str(tmp_path)).load_newest()


def test_a_full_disk_is_survived(tmp_path, caplog):
    """One line, nothing half is left, and the last good one stays."""
    folder = tmp_path / "small"
    folder.mkdir()
    size = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(size, check=False).returncode:
        pytest.skip("needs root, to mount a small file system")
    try:
        save(keeper(folder), 1)
        big = Replica({"model": torch.nn.Linear(200, 200)})
        save(keeper(folder, big), 2)
        assert "the checkpoint of step 2 cannot be written" in caplog.text
        assert [path.name for path in folder.iterdir()] == ["step-000000000001-one"]
        assert keeper(folder).load_newest()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_lack_of_memory_for_the_copy_is_survived(tmp_path, caplog):
    """The copy of the state may be what there is no memory for: one line, and training goes on."""

    class Greedy:
        def state_dict(self):
            return {"much": torch.empty(2**50)}

    checkpoints = keeper(tmp_path, Replica({"greedy": Greedy()}))
    save(checkpoints, 3)
    assert "the checkpoint of step 3 cannot be written" in caplog.text
    assert "can't allocate memory" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_survived(tmp_path, caplog):
    """Training goes on without."""
    (tmp_path / "file").write_text("")
    save(keeper(tmp_path / "file" / "below"), 1)
    assert "the checkpoint of step 1 cannot be written: " in caplog.text


def test_it_is_due_by_time(tmp_path):
    """Not before, and never if it is switched off."""
    assert not keeper(tmp_path, every_seconds=0.0).is_due()
    checkpoints = keeper(tmp_path, every_seconds=0.01)
    deadline = time.monotonic() + 5
    while not checkpoints.is_due():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("reserved", "expected"), [(0, 16), (200, 12)])
def test_the_memory_model_leaves_room_for_the_copy(monkeypatch, reserved, expected):
    """Of what a micro-batch may use, the copy of the state that a checkpoint takes is left out."""
    peaks = iter([100, 300])
    uses = (MemoryUse(used_bytes=100, peak_bytes=peak, limit_bytes=1000) for peak in peaks)
    monkeypatch.setattr(MemoryMeter, "restart", lambda _: None)
    monkeypatch.setattr(MemoryMeter, "read", lambda _: next(uses))
    sizing = MicroBatchSizer()
    sizing.reserve(reserved)
    sizing.enter([WorkerId("alpha", 0)], NodeSettings(), lambda _: None)
    sizing.size = 4
    sizing.done()
    sizing.choose(5)  # another size: what the one before has needed is learnt
    assert sizing.largest == expected


def test_a_training_reserves_what_its_checkpoint_copies(tmp_path):
    """All tensors of model, optimizer and the rest; nothing without checkpoints."""
    found = []
    sizing = SimpleNamespace(reserve=found.append, forget_peak=lambda: None)
    replica = training()
    for settings in (None, CheckpointSettings(folder=str(tmp_path), run="one")):
        Keeping(replica, Position(), Order(), sizing, lambda: True, settings=settings).prove()
    assert found == [2 * (12 + 3) * 4]


def test_who_has_written_a_checkpoint_tells_so(tmp_path):
    """Each one that is whole, its results, and whether it is the best by the job's metric."""
    told = []
    wanted = CheckpointSettings(folder=str(tmp_path), run="one", best="accuracy")
    kept = Checkpoints(wanted, training(), tell=told.append)
    save(kept, 1)
    save(kept, 2, {"accuracy": 0.5, "loss": 1.0})
    save(kept, 3, {"accuracy": 0.25})
    save(kept, 4, {"accuracy": 0.75})
    assert [(one.step, one.is_best) for one in told] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
    ]
    assert told[1].metrics == {"accuracy": 0.5, "loss": 1.0}
    assert all(str(tmp_path) in one.path and one.num_bytes > 100 for one in told)
