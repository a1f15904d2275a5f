"""States that cannot be written down: what is told of them, and how often."""

import errno
import os
import re
from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.messages import CheckpointFailed, CheckpointWritten
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints import hashed_file
from hetero_hvd.worker.recovery.checkpoints.hashed_file import HashedFile
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica
from tests.kit.small_disk import fill, make_room, missing_for_a_disk, small_disk

NEEDED = r"30\.\d kB are needed"
AGAIN = "(training goes on, and the next one is tried in 30 s)"


def system(number):
    """An error of the system."""
    return OSError(number, os.strerror(number))


FAULTS = {
    "a full disk": (
        system(errno.ENOSPC),
        f"No space left on device: {NEEDED}, .* [MGT]B are free in ",
    ),
    "a full quota": (system(errno.EDQUOT), f"Disk quota exceeded: {NEEDED}$"),
    "a volume that is read-only": (system(errno.EROFS), "Read-only file system$"),
    "a missing right": (system(errno.EACCES), "Permission denied$"),
    "a broken disk": (system(errno.EIO), "Input/output error$"),
    "an error of a store": (OSError("InternalError: 500"), "InternalError: 500$"),
    "no memory": (MemoryError("can't allocate"), "can't allocate$"),
    "an error that nobody knows": (ArithmeticError("odd"), "odd$"),
}


class Fault:
    """Raises an error in the place of a call, as long as there is one.

    Attributes:
        error: What is raised; None: the call is made.
        num_raised: How often it was.
    """

    def __init__(self, error):
        self.error = error
        self.num_raised = 0

    def instead_of(self, call):
        """The call, or the error."""

        def made(*arguments):
            if self.error is None:
                return call(*arguments)
            self.num_raised += 1
            raise self.error

        return made


def at_writing(monkeypatch, fault):
    """While torch writes, which has texts of its own for what goes wrong."""

    def opened(file, beside):
        faulty = SimpleNamespace(write=fault.instead_of(file.write), flush=file.flush)
        return HashedFile(faulty, beside)

    monkeypatch.setattr(hashed_file, "HashedFile", opened)


def at_synchronising(monkeypatch, fault):
    """When the file is done."""
    monkeypatch.setattr(os, "fsync", fault.instead_of(os.fsync))


def keeper(folder, told):
    """Checkpoints of a state of 20 kB in a folder."""
    settings = CheckpointSettings(folder=str(folder), run="one", every_seconds=30)
    return Checkpoints(settings, Replica({"model": torch.nn.Linear(50, 100)}), tell=told.append)


def save(kept, step, **options):
    """Write one and wait for it."""
    kept.save(step, **options)
    kept.wait()


@pytest.mark.parametrize("place", [at_writing, at_synchronising])
@pytest.mark.parametrize("kind", FAULTS)
def test_what_cannot_be_written_is_told_once_with_where_and_why(
    tmp_path, monkeypatch, caplog, kind, place
):
    """The driver hears of each; people of the first, and of the one that is written again."""
    error, words = FAULTS[kind]
    fault, told = Fault(error), []
    place(monkeypatch, fault)
    kept = keeper(tmp_path, told)
    save(kept, 1)
    save(kept, 2)
    assert fault.num_raised >= 2
    assert [(type(one), one.step, one.num_failed) for one in told] == [
        (CheckpointFailed, 1, 1),
        (CheckpointFailed, 2, 2),
    ]
    first = str(tmp_path / "step-000000000001-one")
    assert told[0].path == first
    assert re.match(f"{first}: {words}", told[0].error)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert lines == [f"the checkpoint of step 1 cannot be written: {told[0].error} {AGAIN}"]
    fault.error = None
    save(kept, 3)
    assert isinstance(told[-1], CheckpointWritten)
    assert "the checkpoint of step 3 is written; 2 before it could not be" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000003-one"]


def test_nothing_is_promised_after_the_last_one(tmp_path, monkeypatch, caplog):
    """No other one is tried when the training is over."""
    fault, told = Fault(system(errno.EIO)), []
    at_synchronising(monkeypatch, fault)
    save(keeper(tmp_path, told), 7, copies=False)
    assert fault.num_raised
    assert f"cannot be written: {told[0].error}\n" in caplog.text


def test_what_is_written_is_not_missing_if_the_others_cannot_be_listed(
    tmp_path, monkeypatch, caplog
):
    """A store may give up after it has taken the last one: the job has kept it all the same."""
    fault, told = Fault(system(errno.EIO)), []
    kept = keeper(tmp_path, told)
    monkeypatch.setattr(kept, "_prune", fault.instead_of(kept._prune))
    save(kept, 7, copies=False)
    assert fault.num_raised == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000007-one"]
    assert told == []
    assert "step 7 is written; which others there are is not known: [Errno 5]" in caplog.text
    fault.error = None
    save(kept, 8)
    assert [(type(one), one.step) for one in told] == [(CheckpointWritten, 8)]


@pytest.mark.skipif(missing_for_a_disk() is not None, reason="needs root")
def test_a_disk_that_is_full_says_how_much_room_there_has_to_be(tmp_path):
    """A real one: what is there stays whole, nothing half is left, and room is used when it is."""
    told = []
    with small_disk(tmp_path / "disk", kilobytes=128) as disk:
        kept = keeper(disk / "checkpoints", told)
        save(kept, 1)
        fill(disk)
        save(kept, 2)
        assert {path.name for path in (disk / "checkpoints").iterdir()} == {"step-000000000001-one"}
        make_room(disk)
        save(kept, 3)
    assert [type(one) for one in told] == [CheckpointWritten, CheckpointFailed, CheckpointWritten]
    place = disk / "checkpoints"
    full = f"No space left on device: {NEEDED}, 0 kB are free in {place}"
    assert re.fullmatch(f"{place / 'step-000000000002-one'}: {full}", told[1].error)
