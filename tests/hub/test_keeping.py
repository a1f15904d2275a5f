"""Samples that are too old or too many go, the oldest first, and who loses some is told before."""

from __future__ import annotations

import pytest

from hetero_hvd.cli.record.times import duration, time_of
from hetero_hvd.core.recording.retention import Retention, SegmentAge
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.errors import UserError
from hetero_hvd.hub.keeping import StoreKeeping
from tests.hub.test_store import ALL, WALL, batch, clocks, numbers, opened

__all__ = ["clocks", "opened"]
DAY = 86400
SEGMENTS = [SegmentAge(n, n * DAY * 10**6, 100) for n in range(1, 5)]
NOW = 5 * DAY * 10**6
GOING = {
    "none": (Retention(), [], []),
    "older than two days and a half": (Retention(2.5 * DAY), [1, 2], [1, 2, 3]),
    "beyond 250 bytes": (Retention(None, 250), [1, 2], []),
    "both": (Retention(3.5 * DAY, 150), [1, 2, 3], [1, 2]),
}


@pytest.mark.parametrize(("retention", "now", "soon"), GOING.values(), ids=GOING)
def test_the_oldest_go_first(retention, now, soon):
    """By age and size."""
    assert [each.number for each in retention.going(SEGMENTS, NOW)] == now
    assert [each.number for each in retention.going_soon(SEGMENTS, NOW)] == soon


def test_what_goes_is_told_before_and_gone_afterwards(opened, clocks, caplog):
    """Of a session that has no folder; the rest stays."""
    store = opened()
    store.commit([batch(1, 3)])
    store.seal()
    clocks.since_boot += 1.5 * DAY
    late = batch(4, 1, offset=WALL - 1000 + 1.5 * DAY)
    store.commit([late])
    store.seal()
    session = RecordingSession(name="night", from_microseconds=round((WALL - 99) * 1e6))
    keeping = StoreKeeping(store, Retention(2 * DAY), lambda: [session])
    keeping.look()
    assert numbers(store) == [1, 2, 3, 4]
    (mark,) = store.index.marks(ALL)
    assert "night loses its first samples" in mark.words
    clocks.since_boot += DAY
    keeping.look()
    assert numbers(store) == [4]
    assert len(list((store.folder / "segments").iterdir())) == 1
    assert len([record for record in caplog.records if "loses" in record.message]) == 1
    assert numbers(opened()) == [4]


def test_times_are_written_as_people_do():
    """Or refused in one line."""
    assert [duration("--x", text) for text in ("500ms", "2s", "1.5m", "2h", "7d")] == [
        0.5, 2.0, 90.0, 7200.0, 604800.0,
    ]  # fmt: skip
    assert time_of("--x", "10m") == -600.0
    assert time_of("--x", "2026-11-25T14:00+00:00") == 1795615200.0
    for text in ("", "soon", "5", "-3s"):
        with pytest.raises(UserError, match="--x"):
            duration("--x", text)
        if text != "5":
            with pytest.raises(UserError, match="--x"):
                time_of("--x", text)
