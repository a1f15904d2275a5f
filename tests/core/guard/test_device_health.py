"""Episodes of one device: when they begin, when they end, and what leaves them alone."""

import math

import pytest

from hetero_hvd.core.guard.device_health import HELD_DOWN_BY, DeviceHealth
from hetero_hvd.core.guard.gpu_errors import OF_PROGRAMS, PASSING, UNTIL_RESET
from hetero_hvd.core.guard.limits import REASONS, GuardLimits
from hetero_hvd.messages import DeviceSample

LIMITS = GuardLimits(
    temperature=87,
    cpu_temperature=95,
    for_seconds=5,
    return_degrees=10,
    return_seconds=4,
    throttled="drain",
)
TICK_SECONDS = 0.25
HOT, BETWEEN, COOL, UNKNOWN, NONE = 87.0, 80.0, 77.0, math.nan, None


def well(**more):
    """A sample of a GPU that is well, but for some figures."""
    return DeviceSample(**{"temperature_celsius": COOL, "ecc_uncorrected": 1.0, **more})


class Course:
    """One device whose samples come each second while the time is asked four times as often."""

    def __init__(self, kind="GPU", limits=LIMITS):
        self.health = DeviceHealth(kind, limits, interval_seconds=1)
        self.now = 0.0
        self.changes = []

    def take(self, sample):
        """A second that begins with a sample, or with none."""
        if sample is not None:
            self._note(self.health.read(sample, self.now))
        for _ in range(4):
            self.now += TICK_SECONDS
            self._note(self.health.advance(self.now))

    def _note(self, changes):
        for episode, has_begun in changes:
            self.changes.append((self.now, episode.reason, has_begun))

    def heats(self, celsius, count):
        """So many seconds at a temperature; None: without samples."""
        for _ in range(count):
            sample = None if celsius is None else well(temperature_celsius=celsius)
            self.take(sample)


TEMPERATURES = {
    "never hot": ([(BETWEEN, 20)], []),
    "hot, not for long enough": ([(HOT, 4), (COOL, 9), (HOT, 4)], []),
    "hot for long enough": ([(HOT, 6)], [(5.0, True)]),
    "cool again": ([(HOT, 6), (COOL, 6)], [(5.0, True), (10.0, False)]),
    "between the limits it goes on": ([(HOT, 6), (BETWEEN, 60)], [(5.0, True)]),
    "warm in between: its time of being well begins anew": (
        [(HOT, 6), (COOL, 3), (BETWEEN, 1), (COOL, 5)],
        [(5.0, True), (14.0, False)],
    ),
    "silent: neither hot": ([(HOT, 3), (NONE, 60), (HOT, 1)], [(64.0, True)]),
    "silent: nor well": ([(HOT, 6), (COOL, 1), (NONE, 60)], [(5.0, True)]),
    "not told: neither hot": ([(HOT, 3), (UNKNOWN, 60)], []),
    "not told: nor well": ([(HOT, 6), (UNKNOWN, 60)], [(5.0, True)]),
    "not told for a moment": ([(HOT, 3), (UNKNOWN, 1), (HOT, 3)], [(6.0, True)]),
    "the second time it must be well for twice as long": (
        [(HOT, 6), (COOL, 5), (HOT, 6), (COOL, 10)],
        [(5.0, True), (10.0, False), (16.0, True), (25.0, False)],
    ),
}


@pytest.mark.parametrize(("course", "expected"), TEMPERATURES.values(), ids=TEMPERATURES)
def test_the_course_of_a_temperature(course, expected):
    """Seconds at which an episode begins and ends."""
    told = Course()
    for celsius, count in course:
        told.heats(celsius, count)
    assert [(at, has_begun) for at, _, has_begun in told.changes] == expected


def test_the_temperature_of_processors_has_a_limit_of_its_own():
    """And without a limit nothing is too hot."""
    course = Course("processors")
    course.heats(94.0, 20)
    assert course.changes == []
    course.heats(95.0, 6)
    assert [reason for _, reason, _ in course.changes] == ["temperature"]
    free = Course(limits=GuardLimits(temperature=0, for_seconds=0))
    free.heats(150.0, 9)
    assert free.changes == []


@pytest.mark.parametrize("word", [*HELD_DOWN_BY, "power_cap", "application_clocks", "sync_boost"])
def test_heat_and_power_throttle_and_a_cap_does_not(word):
    """A power cap holds nearly every GPU down that works."""
    course = Course()
    for _ in range(6):
        course.take(well(throttle_reasons=("power_cap", word)))
    assert len(course.changes) == (word in HELD_DOWN_BY)
    if course.changes:
        assert word in course.health.episodes[0].words
        assert "power_cap" not in course.health.episodes[0].words


ERRORS = {
    **dict.fromkeys(OF_PROGRAMS, None),
    **dict.fromkeys(PASSING, ("drain", False)),
    **dict.fromkeys(UNTIL_RESET, ("drain", True)),
    9999: ("alert", False),
}


@pytest.mark.parametrize(("number", "expected"), ERRORS.items())
def test_what_an_xid_is(number, expected):
    """What programs cause is none of a GPU's; after some it comes back, after some it does not."""
    course = Course()
    course.take(well())
    course.take(well(xid=number, xids={number: 1}))
    episodes = course.health.episodes
    assert [(e.reply, e.is_lasting) for e in episodes] == ([expected] if expected else [])
    assert all(f"XID {number} (" in episode.words for episode in episodes)
    for _ in range(9):
        course.take(well(xid=number, xids={number: 1}))
    assert bool(course.health.episodes) == (expected == ("drain", True))


def test_an_error_hides_no_other_one():
    """XID 48 is followed by 45 within the same second, when its program ends."""
    course = Course()
    course.take(well())
    course.take(well(xid=45, xids={48: 1, 45: 3}))
    assert [episode.is_lasting for episode in course.health.episodes] == [True]


def test_what_was_before_counts_for_nothing():
    """Nor does a sampler that begins anew, and with it its counters."""
    course = Course()
    for sample in (well(xids={79: 2}, ecc_uncorrected=7.0), well(), well()):
        course.take(sample)
    assert course.changes == []
    course.take(well(xids={79: 1}))
    assert [reason for _, reason, _ in course.changes] == ["xid"]


def test_errors_of_memory():
    """Each that could not be corrected; where the counter is not told, nothing follows."""
    course = Course()
    for count in (1.0, 1.0, math.nan, 1.0):
        course.take(well(ecc_uncorrected=count))
    assert course.changes == []
    for count in (math.nan, 3.0):
        course.take(well(ecc_uncorrected=count))
    (episode,) = course.health.episodes
    assert "2 more errors of its memory" in episode.words
    for _ in range(5):
        course.take(well(ecc_uncorrected=3.0))
    assert [(reason, begun) for _, reason, begun in course.changes] == [
        ("ecc", True),
        ("ecc", False),
    ]
    course.take(well(ecc_uncorrected=4.0))
    assert course.health.episodes[0].is_lasting, "the second time it stays away"


ERRORS_IN_A_ROW = {
    "the same again": ([94, 94], [False, True]),
    "another one": ([63, 92], [False, True]),
    "after one of a program": ([31, 94], [None, False]),
    "after one that nobody knows": ([9999, 94], [False, False]),
    "after two that nobody knows": ([9999, 9998, 94], [False, False, False]),
    "one that nobody knows, between": ([94, 9999, 94], [False, False, True]),
}


@pytest.mark.parametrize("case", ERRORS_IN_A_ROW)
def test_who_was_drained_once_stays_away_the_second_time(case):
    """By an error of the hardware; an alert was no such time."""
    numbers, lasting = ERRORS_IN_A_ROW[case]
    course, counts, found = Course(), {}, []
    course.take(well())
    for number in numbers:
        counts = {**counts, number: counts.get(number, 0) + 1}
        course.take(well(xids=counts))
        found.append(next((e.is_lasting for e in course.health.episodes), None))
        for _ in range(40):
            course.take(well(xids=counts))
    assert found == lasting


def test_an_error_that_is_worse_is_an_episode_of_its_own():
    """A passing one during a lasting one is not; more of the same only takes longer."""
    course = Course()
    course.take(well())
    for xids in ({9999: 1}, {9999: 1, 94: 1}, {9999: 1, 94: 2}, {9999: 1, 94: 2, 79: 1}):
        course.take(well(xids=xids))
    course.take(well(xids={9999: 2, 94: 3, 79: 1}))
    assert [begun for _, _, begun in course.changes] == [True, True, True]
    (episode,) = course.health.episodes
    assert episode.is_lasting
    assert "79" in episode.words


@pytest.mark.parametrize("reason", ["xid", "ecc", "throttled"])
@pytest.mark.parametrize("reply", ["drain", "alert", "off"])
def test_what_is_left_alone(reason, reply):
    """`off` is silent; an alert ends by itself, whatever the error."""
    course = Course(limits=GuardLimits(for_seconds=2, return_seconds=4, **{reason: reply}))
    bad = well(xids={79: 1}) if reason == "xid" else well(ecc_uncorrected=9.0)
    course.take(well())
    for _ in range(3):
        course.take(well(throttle_reasons=("thermal",)) if reason == "throttled" else bad)
    assert [e.reply for e in course.health.episodes] == ([] if reply == "off" else [reply])
    if reply == "alert":
        for _ in range(5):
            course.take(well(xids=bad.xids, ecc_uncorrected=bad.ecc_uncorrected))
        assert course.health.episodes == []


@pytest.mark.parametrize("reply", ["drain", "alert", "off"])
def test_limits_may_change_meanwhile(reply):
    """What is left alone from now on is over, or an alert."""
    course = Course()
    course.take(well())
    course.take(well(xids={79: 1}))
    course.health.follow(GuardLimits(xid=reply))
    episodes = [(e.reply, e.is_lasting) for e in course.health.episodes]
    assert episodes == {"drain": [("drain", True)], "alert": [("alert", False)], "off": []}[reply]


@pytest.mark.parametrize("kind", ["GPU", "processors"])
@pytest.mark.parametrize("limit", ["temperature", "cpu_temperature"])
def test_a_limit_of_0_ends_what_its_temperature_has_begun(kind, limit):
    """At once, also where nobody tells a temperature any more; the limit of others does not."""
    course = Course(kind)
    course.heats(99.0, 6)
    assert len(course.health.episodes) == 1
    course.health.follow(GuardLimits(**{"cpu_temperature": 95, limit: 0}))
    is_own = (kind == "GPU") == (limit == "temperature")
    assert len(course.health.episodes) == (not is_own)


def test_who_is_said_to_be_well_begins_anew():
    """Nothing is left of an error that would last."""
    course = Course()
    course.take(well())
    course.take(well(xids={79: 1}))
    course.health.forget()
    for _ in range(9):
        course.take(well(xids={79: 1}))
    assert course.health.episodes == []


def test_silence_is_neither_told_too_early_nor_before_the_first_sample():
    """Three samples, and 10 s at least."""
    course = Course()
    assert not course.health.is_silent(1e9)
    course.take(well())
    assert [course.health.is_silent(seconds) for seconds in (9.9, 10.1)] == [False, True]
    slow = DeviceHealth("GPU", LIMITS, interval_seconds=60)
    slow.read(well(), 0.0)
    assert [slow.is_silent(seconds) for seconds in (179.0, 181.0)] == [False, True]


def test_every_reason_has_a_reply():
    """Also one that is added."""
    assert {GuardLimits().reply_to(reason) for reason in REASONS} <= {"drain", "alert", "off"}
