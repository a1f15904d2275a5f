"""Parts that follow one another: nothing between them is lost, and waiting is no processor time."""

import time

from hetero_hvd.probes.laps import Laps


def test_each_part_is_timed_from_the_end_of_the_one_before():
    """One that comes again is added to; a new beginning forgets all."""
    laps = Laps()
    began_at = time.perf_counter()
    laps.begin()
    time.sleep(0.02)
    laps.lap("wait")
    sum(range(1_000_000))
    laps.lap("compute")
    time.sleep(0.02)
    laps.lap("wait")
    whole = time.perf_counter() - began_at
    assert list(laps.parts) == ["wait", "compute"]
    assert laps.parts["wait"][0] >= 0.04
    assert 0 <= whole - sum(seconds for seconds, _ in laps.parts.values()) < 0.01
    assert laps.parts["wait"][1] < laps.parts["compute"][1]
    laps.begin()
    assert laps.parts == {}
