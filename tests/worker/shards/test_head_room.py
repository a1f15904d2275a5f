"""Parts of a state and the passes share a worker's memory: each leaves what the other takes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.core.micro_batch.memory_model import HEAD_ROOM_RATIO
from hetero_hvd.core.shards.rooms import ROOM_RATIO
from hetero_hvd.messages import StepTiming
from hetero_hvd.messages.launch import NodeSettings
from hetero_hvd.probes.machine.memory import MemoryUse
from hetero_hvd.worker.micro_batch import sizing
from hetero_hvd.worker.micro_batch.sizing import AUTO, MicroBatchSizer, PassMemory
from hetero_hvd.worker.shards.element_wise import BLOCK_ELEMENTS
from hetero_hvd.worker.shards.head_room import HeadRoom
from hetero_hvd.worker.shards.members import HeldShards, ShardMember
from hetero_hvd.worker.shards.slices import Layout

KIB = 1024
STATE_BYTES = 2 * KIB
"""Of a block, as with Adam in float32."""


PARAMETER = torch.nn.Parameter(torch.zeros(100 * BLOCK_ELEMENTS))
"""A hundred blocks, 1 KiB each."""

LAYOUT = Layout(torch.optim.SGD([PARAMETER], lr=1.0))


def head_room():
    """Of a worker that holds nothing yet."""
    return HeadRoom(LAYOUT.num_blocks, STATE_BYTES, PARAMETER.nbytes, KIB)


def test_before_anything_is_measured_a_rest_is_left_for_the_passes():
    """Of what model and gradients leave."""
    room = head_room()
    room.measure(lambda: PassMemory(1000 * KIB, 300 * KIB, None, 1, 0))
    found = room.room(0)
    assert found.most_blocks == int(ROOM_RATIO * (1000 - 300 - 100) / 2)
    assert found.beside(1) == found.beside(1000) == found.most_blocks


@pytest.mark.parametrize(
    ("samples", "taken"), [(1, 400), (10, 400), (20, 500), (40, 700), (400, 4300)]
)
def test_each_sample_at_a_time_takes_its_part_of_the_room(samples, taken):
    """Of 300 KiB and 10 for each; but idle with gradients takes 400, whatever the line says."""
    room = head_room()
    room.measure(lambda: PassMemory(2000 * KIB, 300 * KIB, (300.0 * KIB, 10.0 * KIB), 1, 0))
    left = max(0, 2000 - taken / (1 - HEAD_ROOM_RATIO)) / 2
    assert abs(room.room(0).beside(samples) - left) <= 1
    room.measure(None)  # as last time
    assert abs(room.room(0).beside(samples) - left) <= 1


def test_what_is_held_is_there_whatever_is_measured():
    """Who trains with it lives; so no part is taken from it for want of memory."""
    room = head_room()
    for line in (None, (900.0 * KIB, 10.0 * KIB)):
        room.measure(lambda: PassMemory(1000 * KIB, 950 * KIB, line, 1, 0))  # noqa: B023 - at once
        assert room.room(0).most_blocks == 0
        assert room.room(70).most_blocks == 70


@pytest.mark.parametrize(
    ("share", "smallest", "largest", "samples"),
    [(40, 1, 0, 40), (40, 1, 16, 14), (40, 8, 8, 8), (0, 1, 0, 1), (3, 8, 8, 8), (7, 1, 16, 7)],
)
def test_a_share_is_taken_in_micro_batches(share, smallest, largest, samples):
    """As few as can be, as equal as can be; where they are fixed, whole ones."""
    assert HeldShards(smallest=smallest, largest=largest).micro_batch(share) == samples


def test_the_shares_of_the_plan_decide_who_holds_how_much():
    """Of two that are alike the one with the larger share gets the smaller part; both say so."""
    passes = PassMemory(1000 * KIB, 100 * KIB, (100.0 * KIB, 10.0 * KIB), 1, 0)
    members = []
    for number in range(3):
        own = head_room()
        own.measure(lambda: passes)
        held = HeldShards(room=own.room(0), smallest=1, largest=0)
        members.append(ShardMember(0, is_applying=False, held=held, name=f"w:{number}"))
    alike, other = head_room(), head_room()
    assert alike.loads(members, (20, 20, 20), {}, 0) == (66, 67, 67)
    first, second, third = other.loads(members, (40, 20, 60), {}, 0)
    assert first + second + third == 200
    assert second > first > third
    assert "w:0 " in other.news[0]
    assert " beside 40 samples at a time, w:1 " in other.news[0]
    assert other.load_bytes == first * STATE_BYTES


class Memory:
    """What a meter would read."""

    def __init__(self, *_):
        pass

    used, peak, limit = 100, 100, 1000

    def read(self):
        """Bytes."""
        return MemoryUse(used_bytes=self.used, peak_bytes=self.peak, limit_bytes=self.limit)

    def restart(self):
        """Nothing to forget."""


SIZES = {
    "the whole share": (0, False, None, (1, 0)),
    "what the script wants": (8, False, None, (1, 8)),
    "nothing else": (8, True, 4, (8, 8)),
    "what the user allows": (8, False, 4, (1, 4)),
    "what pays so far": (AUTO, False, 4, (1, 1)),
}


@pytest.mark.parametrize("case", SIZES.values(), ids=SIZES)
def test_the_limit_of_micro_batches_knows_what_parts_take(monkeypatch, case):
    """What is measured is told without parts; what these will take is no more there for passes."""
    wanted, is_fixed, most, sizes = case
    monkeypatch.setattr(sizing, "MemoryMeter", Memory)
    node = NodeSettings(max_local_batch_size=most)
    sizer = MicroBatchSizer(wanted, is_fixed=is_fixed)
    parts = SimpleNamespace(now=20, then=20)
    sizer.parts_bytes = lambda: (parts.now, parts.then)
    sizer.enter([object()], node, lambda _: None)
    before = sizer.memory(node)
    assert (before.idle_bytes, before.line) == (80, None)
    row = StepTiming(**dict.fromkeys(StepTiming.__struct_fields__, 0))
    for share, peak in ((8, 180), (16, 260)):
        sizer.choose(share)
        monkeypatch.setattr(Memory, "peak", peak)
        sizer.done()
        sizer.measured(row)
    found = sizer.memory(node)
    assert (found.smallest, found.largest) == sizes
    assert math.isclose(found.idle_bytes, 80)
    assert found.line is not None
    base, slope = found.line
    if not (wanted or most):
        assert (base, slope) == (80, 10)
        assert sizer.largest == int(((1000 - 20) * (1 - HEAD_ROOM_RATIO) - 80) / 10)
        parts.then = 400
        sizer.measured(row)
        assert sizer.largest == int(((1000 - 400) * (1 - HEAD_ROOM_RATIO) - 80) / 10)
