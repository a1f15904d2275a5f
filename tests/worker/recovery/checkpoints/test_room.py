"""A copy of the state goes to memory that is there already, and the training waits for neither."""

import errno
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints import room as module
from hetero_hvd.worker.recovery.checkpoints.background import Beside
from hetero_hvd.worker.recovery.checkpoints.room import Room
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica, unpacked
from tests.kit.checkout import variables

GENEROUS_SECONDS = 60
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
TENSORS = {
    "contiguous": torch.arange(6.0).view(2, 3),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "a channel last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "expanded": torch.ones(1).expand(4),
    "a number": torch.tensor(3),
    "empty": torch.empty(0, 2),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "complex": torch.ones(2, dtype=torch.complex64),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """What is said of large states holds for small ones here."""
    monkeypatch.setattr(module, "SMALL_BYTES", -1)


def ready(room, tensors):
    """Wait until it is."""
    room.is_ready(lambda: tensors)
    room._thread.join(GENEROUS_SECONDS)
    assert room.is_ready(lambda: pytest.fail("it is asked once only"))


@pytest.mark.parametrize("huge_page_bytes", [1, module.HUGE_PAGE_BYTES])
@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_copy_is_equal_and_uses_each_place_once(monkeypatch, tensor, huge_page_bytes):
    """Whatever it is of, and whoever gives the memory; two of a form have a place each."""
    monkeypatch.setattr(module, "HUGE_PAGE_BYTES", huge_page_bytes)
    tensors = [tensor, tensor + tensor]
    room = Room(Beside())
    ready(room, tensors)
    places = {each.data_ptr() for free in room._free.values() for each in free}
    copies = [room.copy(each) for each in tensors]
    for copy, each in zip(copies, tensors, strict=True):
        assert torch.equal(copy, each)
        assert copy.dtype == each.dtype
    if tensor.numel() and tensor.is_contiguous():
        assert {copy.data_ptr() for copy in copies} == places
    assert len({copy.data_ptr() for copy in copies}) == (2 if tensor.numel() else 1)


def test_what_has_changed_meanwhile_is_copied_all_the_same():
    """A state that has grown, or has another form, gets what is missing; the rest goes back."""
    room = Room(Beside())
    ready(room, [torch.zeros(3), torch.zeros(5)])
    grown = [torch.ones(3), torch.ones(4), torch.ones(3)]
    assert all(torch.equal(room.copy(each), each) for each in grown)
    room.leave()
    assert not room.is_used
    assert not room._free


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages")
def test_a_large_tensor_has_its_place_in_small_pages():
    """Where torch would ask for huge ones: to make room for those the system stops the training."""
    code = """
import re, torch
from hetero_hvd.worker.recovery.checkpoints.background import Beside
from hetero_hvd.worker.recovery.checkpoints.room import Room
usual, room = torch.zeros(2**23), Room(Beside())
while not room.is_ready(lambda: [usual]):
    pass
for tensor in usual, room.copy(usual):
    inside = False
    for line in open("/proc/self/smaps"):
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= tensor.data_ptr() < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            print("hg" in line.split(), "nh" in line.split())
"""
    environment = variables(THP_MEM_ALLOC_ENABLE="1")
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert found.stdout.split() == [b"True", b"False", b"False", b"True"], found.stderr


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "none"), RuntimeError()])
def test_where_there_is_no_memory_or_no_thread_the_copy_says_so(monkeypatch, error):
    """Getting the room fails quietly: the copy fails for the same reason, and that is told."""

    def none(*_args, **_more):
        raise error

    room = Room(Beside())
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty_like", none)
        ready(room, [torch.zeros(3)])
        with pytest.raises(type(error)):
            room.copy(torch.zeros(3))
    room.leave()

    def no_thread(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert room.is_ready(lambda: [torch.zeros(3)])
    assert not room.is_used


def test_a_checkpoint_is_of_the_moment_of_its_copy(tmp_path):
    """Room that was got earlier holds nothing of the state then; the next copy has its own."""
    model = torch.nn.Linear(2, 1)
    replica = Replica({"model": model})
    settings, told = CheckpointSettings(folder=str(tmp_path), run="one"), []
    checkpoints = Checkpoints(settings, replica, tell=told.append)
    for step in (1, 2):
        while not checkpoints.is_ready():
            assert checkpoints.takes_memory
        torch.nn.init.constant_(model.weight, float(step))
        began_at_seconds = time.monotonic()
        checkpoints.save(step)
        waited_seconds = time.monotonic() - began_at_seconds
        torch.nn.init.constant_(model.weight, -1.0)
        checkpoints.wait()
        assert not checkpoints.takes_memory
        assert 0 < told[-1].copy_seconds <= waited_seconds
    states = [unpacked((path / "state.pt").read_bytes()) for path in sorted(tmp_path.glob("step*"))]
    assert [state["model"]["weight"].tolist() for state in states] == [[[1.0, 1.0]], [[2.0, 2.0]]]


def test_who_leaves_does_not_wait_for_the_rest_of_it():
    """Such as a worker that is to end, or that has no longer rank 0: only for the piece of now."""

    class Slow(Beside):
        num_pieces = 0

        def run(self, work):
            self.num_pieces += 1
            is_begun.set()
            assert may_go_on.wait(GENEROUS_SECONDS)
            return super().run(work)

    is_begun, may_go_on, beside = threading.Event(), threading.Event(), Slow()
    room = Room(beside)
    assert not room.is_ready(lambda: [torch.empty(8 * module.PIECE_BYTES)] * 2)
    assert is_begun.wait(GENEROUS_SECONDS)
    leaving = threading.Thread(target=room.leave)
    leaving.start()
    while not room._is_left:
        pass
    may_go_on.set()
    leaving.join(GENEROUS_SECONDS)
    assert beside.num_pieces == 1
    assert not room.is_used
    assert not room._free


def test_what_is_replaced_meanwhile_is_freed():
    """A room knows the forms of tensors, and holds none of them."""
    room, tensors = Room(Beside()), [torch.zeros(3)]
    found = weakref.ref(tensors[0])
    room.is_ready(lambda: tensors)
    tensors.clear()
    assert found() is None
    room.leave()


def test_who_writes_no_checkpoints_any_more_gives_its_room_back(tmp_path):
    """Another worker has rank 0 since."""
    settings = CheckpointSettings(folder=str(tmp_path), run="one")
    checkpoints = Checkpoints(settings, Replica({"model": torch.nn.Linear(2, 1)}))
    checkpoints.is_ready()
    assert checkpoints.takes_memory
    checkpoints.needs_no_room()
    assert not checkpoints.takes_memory
    checkpoints.needs_no_room()
