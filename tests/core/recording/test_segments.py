"""What is stored in columns comes back bit for bit."""

from __future__ import annotations

import math
import struct
import time
import zlib
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.recording.columns import (
    code_doubles,
    code_integers,
    doubles_of,
    integers_of,
)
from hetero_hvd.core.recording.segments import (
    Recorded,
    decode_numbers,
    decode_piece,
    encode_piece,
)
from hetero_hvd.core.recording.thinned_series import figure_places, figures_in
from hetero_hvd.errors import MalformedDataError
from hetero_hvd.messages import DeviceSample, DeviceUser, NodeSampled

DOUBLES = {
    "whole numbers": [1.0, 2.0, 5.0],
    "few decimals": [350.5, 350.25, 0.001],
    "not told": [math.nan] * 3,
    "told now and then": [1.5, math.nan, 2.5],
    "minus zero": [0.0, -0.0],
    "infinite": [math.inf, -math.inf, 1.0],
    "anything": [math.pi, 1e300, 5e-324],
    "large counters": [2.0**53 + 2, 2.0**60],
    "none": [],
}


def bits(values):
    """Of each."""
    return [struct.pack("<d", value) for value in values]


@pytest.mark.parametrize("values", DOUBLES.values(), ids=DOUBLES)
def test_doubles_keep_their_bits(values):
    """Whatever a sensor tells."""
    found = doubles_of(code_doubles(values), len(values)).tolist()
    assert bits(found) == bits(values)


@given(st.lists(st.floats()))
def test_all_doubles_keep_their_bits(values):
    """But for what is in a NaN beside that it is one: nobody says anything by it."""
    values = [math.nan if math.isnan(value) else value for value in values]
    found = doubles_of(code_doubles(values), len(values)).tolist()
    assert bits(found) == bits(values)


@given(st.lists(st.integers(-(2**61), 2**61)))
def test_all_integers_come_back(values):
    """Numbers and times are of this size."""
    assert integers_of(code_integers(values), len(values)).tolist() == values


def sample(number, *, devices=1):
    """One that has all kinds of fields."""
    gpus = [
        DeviceSample(
            index=index,
            uuid=f"GPU-{index}",
            power_watts=300 + number / 1000,
            throttle_reasons=("power",) if number % 3 else (),
            throttled_seconds={"power": number / 7} if number % 2 else {},
            xids={31: number},
            used_by=(DeviceUser(pid=number % 2, memory_bytes=1e9),) * (number % 3),
        )
        for index in range(devices)
    ]
    return NodeSampled(node="a", cpu_use_ratio=1 / (number + 1), load=math.nan, devices=tuple(gpus))


@pytest.mark.parametrize("num_samples", [0, 1, 50])
def test_a_piece_comes_back_as_it_was_sent(num_samples):
    """With gaps in its numbers, and devices that come and go."""
    frames = [
        Recorded(7 * n, 10**15 + n**2, msgspec.msgpack.encode(sample(n, devices=n % 4)))
        for n in range(num_samples)
    ]
    assert list(decode_piece(encode_piece(frames))) == frames


def test_a_piece_of_the_first_form_is_read():
    """In which all columns were compressed together."""
    frames = [Recorded(n, n, msgspec.msgpack.encode(sample(n))) for n in range(20)]
    _, head, bodies = msgspec.msgpack.decode(encode_piece(frames))
    columns = msgspec.msgpack.decode(zlib.decompress(head))
    columns[0] = 1
    for column, body in zip(
        (columns[2], columns[3], columns[5], *columns[6].values()), bodies, strict=True
    ):
        column[5] = zlib.decompress(body) if body else b""
    earlier = zlib.compress(msgspec.msgpack.encode(columns), 9)
    assert list(decode_piece(earlier)) == frames


def test_some_numbers_are_read_without_the_others():
    """By device, though devices come, go and change their places; they equal those of all."""
    sent = [sample(n, devices=n % 4) for n in range(50)]
    gone = [msgspec.structs.replace(each, devices=each.devices[1:]) for each in sent]
    frames = [
        Recorded(3 * n, 7 * n, msgspec.msgpack.encode(each)) for n, each in enumerate(sent + gone)
    ]
    shown = []

    def places(record):
        shown.append(figures_in(record))
        return figure_places(record, "power_watts")

    found = decode_numbers(encode_piece(frames), places)
    assert found.sequences.tolist() == [frame.sequence for frame in frames]
    assert found.times.tolist() == [frame.at_microseconds for frame in frames]
    assert found.values.keys() == {"0", "1", "2"}
    for device, column in found.values.items():
        powers = [
            {gpu.index: gpu.power_watts for gpu in each.devices}.get(int(device), math.nan)
            for each in sent + gone
        ]
        assert bits(column.tolist()) == bits(powers)
    assert {"power_watts", "cpu_use_ratio"} <= set().union(*shown)
    assert not {"index", "at_unix_seconds", "node"} & set().union(*shown)


def test_hours_of_a_sensor_takes_few_bytes():
    """What does not change takes nothing, what changes in its last digits takes these."""
    frames = [
        Recorded(n, n * 10**6, msgspec.msgpack.encode(NodeSampled(node="a", load=n % 3 / 100)))
        for n in range(20000)
    ]
    assert len(encode_piece(frames)) < len(frames) / 25


KINDS = {
    "nil": {"later": None},
    "nil beside a double": {"later": [None, 1.5, None]},
    "nil or a double, at one place": {"later": math.nan},
    "an integer": {"later": 2**63},
    "bytes": {"later": b"x"},
    "a record in a record": {"later": {"a": {"b": [{"c": None, "d": 0.5}]}}},
    "a name with a slash": {"a/b": 1.5, "a": {"b": 2.5, "c": None}},
    "nothing": {},
}
"""What a sample of a later version may have more, by the kinds of MessagePack."""


def test_whatever_kind_a_later_version_adds_comes_back():
    """All in one piece: one that could not be read would cost the others, too."""
    samples = [msgspec.to_builtins(sample(1)) | more for more in KINDS.values()]
    samples = [msgspec.msgpack.encode(each | {"later": None}) for each in samples] + [
        msgspec.msgpack.encode(each) for each in samples
    ]
    frames = [Recorded(number, number, each) for number, each in enumerate(samples, 1)]
    assert list(decode_piece(encode_piece(frames))) == frames


def test_samples_that_are_all_different_are_read_in_the_time_of_others():
    """Not in one that grows with the square of their number: 20 minutes for these."""
    frames = [Recorded(n, n, msgspec.msgpack.encode({"count": n})) for n in range(1, 100_001)]
    began = time.process_time()
    assert list(decode_piece(encode_piece(frames))) == frames
    assert time.process_time() - began < 30


def test_of_a_damaged_column_the_others_are_left():
    """Whatever bit is wrong: each sample is there without what was in that column, or none is."""
    told = [
        (f"{n}", {"a": n / 7, "list": [n / 3, 1], "inner": {"b": n / 9, "c": 2.5}})
        for n in range(9)
    ]
    frames = [Recorded(int(n), 10 + int(n), msgspec.msgpack.encode(sample)) for n, sample in told]
    content = encode_piece(frames)
    found = Counter()
    for at in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[at // 8] ^= 1 << at % 8
        lost = set()
        try:
            left = list(decode_piece(bytes(damaged), lost))
        except MalformedDataError:
            continue
        expected = []
        for _, sample in told:
            inner = {k: v for k, v in sample["inner"].items() if f"/inner/{k}" not in lost}
            first = math.nan if "/list/0" in lost else sample["list"][0]
            bare = {"a": sample["a"], "list": [first, 1], "inner": inner}
            expected.append(bare if "/a" not in lost else {k: bare[k] for k in ("list", "inner")})
        assert [frame[:2] for frame in left] == [frame[:2] for frame in frames]
        assert [frame.sample for frame in left] == list(map(msgspec.msgpack.encode, expected))
        found[tuple(lost)] += 1
    assert found.keys() >= {(), ("/a",), ("/list/0",), ("/inner/b",)}


WHOLE = encode_piece([Recorded(1, 1, msgspec.msgpack.encode(sample(1)))])
DAMAGED = {
    "nothing": b"",
    "noise": b"noise",
    "half": WHOLE[: len(WHOLE) // 2],
    "another byte": WHOLE[:-3] + bytes([WHOLE[-3] ^ 1]) + WHOLE[-2:],
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_piece_is_told(content):
    """By an error of ours, not by whatever breaks first."""
    with pytest.raises(MalformedDataError, match="damaged"):
        list(decode_piece(content))
