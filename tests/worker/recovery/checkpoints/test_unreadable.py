"""What is damaged is passed over; what merely cannot be read is not."""

import errno
from itertools import product

import pytest
import torch

from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.worker.recovery.checkpoints.registry import store_at

from .store_rigs import keeper, save, training

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs

TWO = "step-000000000002-one"


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
