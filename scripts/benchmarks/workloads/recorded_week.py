"""What a node with many GPUs tells in a week at 2 Hz, as a hub has it on its disk."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import msgspec

from hetero_hvd.core.recording.segments import Recorded, encode_piece
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.core.significant import significant
from hetero_hvd.hub.service import open_store
from hetero_hvd.hub.storage.index import StoredPiece, StreamState
from hetero_hvd.messages import DeviceSample, NodeSampled

NODE, SESSION = "alpha", "week"
HOUR_SAMPLES, HOURS = 7200, 7 * 24
EVERY_MICROSECONDS = MICROSECONDS // 2
_SEQUENCES, _TIMES, _FIRST = 2, 3, 4
"""Of the head of a piece: which columns these are, and which field their first value is."""


def hour_of_samples(num_devices: int) -> list[Recorded]:
    """An hour of them, from the time 0 on."""
    return [
        Recorded(
            n + 1,
            EVERY_MICROSECONDS * n + random.randrange(2000),  # noqa: S311
            drawn_sample(n, num_devices),
        )
        for n in range(HOUR_SAMPLES)
    ]


def store_week(folder: Path, num_devices: int) -> None:
    """Fill a hub's store with a week until now, and a session of it.

    All hours have the same figures: it is their number that matters to who reads them.
    """
    hour = hour_of_samples(num_devices)
    version, packed_head, bodies = msgspec.msgpack.decode(encode_piece(hour))
    head = msgspec.msgpack.decode(zlib.decompress(packed_head))
    store = open_store(folder)
    try:
        span = HOUR_SAMPLES * EVERY_MICROSECONDS
        begin = store.now_microseconds() - HOURS * span
        for number in range(HOURS):
            earlier = HOUR_SAMPLES * number
            head[_SEQUENCES][_FIRST] = hour[0].sequence + earlier
            head[_TIMES][_FIRST] = hour[0].at_microseconds + begin + span * number
            packed_head = zlib.compress(msgspec.msgpack.encode(head))
            content = msgspec.msgpack.encode([version, packed_head, bodies])
            (folder / "segments" / f"{number + 1:010}.segment").write_bytes(content)
            last = begin + span * number + hour[-1].at_microseconds
            found = StoredPiece(
                number + 1, 0, len(content), "life", NODE, earlier + 1, earlier + HOUR_SAMPLES,
                head[_TIMES][_FIRST], last, HOUR_SAMPLES,
            )  # fmt: skip
            state = StreamState(NODE, found.last + 1, last, found.last, 0)
            store.index.seal(number + 1, [found], {"life": state}, [])
        store.index.put_session(
            RecordingSession(
                name=SESSION,
                from_microseconds=begin,
                until_microseconds=begin + HOURS * span,
                every_seconds=0.5,
            )
        )
    finally:
        store.close()


def drawn_sample(number: int, num_devices: int) -> bytes:
    """A sample as an agent sends it, with figures that change as those of a training."""
    draw = random.randrange
    gpus = tuple(
        DeviceSample(
            index=index,
            uuid=f"GPU-{index:036}",
            name="NVIDIA H100 80GB HBM3",
            use_ratio=draw(80, 101) / 100,
            memory_used_bytes=60 * 2.0**30 + draw(100) * 2.0**20,
            memory_total_bytes=80 * 2.0**30,
            temperature_celsius=float(draw(50, 56)),
            power_watts=draw(500_000, 700_000) / 1000,
            energy_joules=(number * 300_000 + draw(100_000)) / 1000,
            sm_clock_hertz=draw(170, 199) * 1e7,
            memory_clock_hertz=2.619e9,
            throttled_seconds={"sw_power_cap": number // 10 / 10},
            pcie_received_bytes_per_second=draw(1000, 20_000) * 1000.0,
            pcie_sent_bytes_per_second=draw(1000, 20_000) * 1000.0,
            nvlink_received_bytes_per_second=significant(draw(10**10, 4 * 10**11)),
            nvlink_sent_bytes_per_second=significant(draw(10**10, 4 * 10**11)),
            ecc_corrected=0.0,
            ecc_uncorrected=0.0,
            pcie_replays=0.0,
        )
        for index in range(num_devices)
    )
    return msgspec.msgpack.encode(
        NodeSampled(
            node=NODE,
            machine_id="0" * 32,
            at_unix_seconds=1.7e9 + number / 2 + random.random() / 1000,  # noqa: S311
            seconds=significant(0.5 + random.random() / 1000),  # noqa: S311
            took_seconds=significant(random.random() / 10),  # noqa: S311
            cpu_use_ratio=significant(random.random()),  # noqa: S311
            load=draw(100, 2000) / 100,
            memory_used_bytes=draw(10**6, 10**7) * 4096.0,
            memory_total_bytes=2.0**38,
            network_received_bytes_per_second=significant(draw(10**9)),
            network_sent_bytes_per_second=significant(draw(10**9)),
            disk_read_bytes_per_second=0.0,
            disk_written_bytes_per_second=significant(draw(10**8)),
            devices=gpus,
        )
    )
