"""What is planned: priorities, lending, quotas, reservations, arrays, limits of time."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.queue.device_classes import ClassTable
from hetero_hvd.core.queue.devices import DevicePool
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.core.queue.queue_events import (
    DeviceAdded,
    DeviceChanged,
    JobFailed,
    JobFinished,
    JobHeld,
    JobIdled,
    JobMoved,
    JobProgressed,
    JobReleased,
    JobSubmitted,
)
from hetero_hvd.core.queue.queue_plan import decide, in_words
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.errors import UserError

ABOVE = {
    "one that shrinks": ([(1, 3)], "kind!=t4", {"a0": 2, "b": 1}),
    "one that stops": ([(1, 1)] * 3, "kind==a100", {"a1": 1, "a2": 1, "b": 1}),
    "what idles then is lent": ([(2, 2), (1, 3)], "kind==a100", {"a1": 2, "b": 1}),
    "nothing that nobody can use": ([(1, 3)], "memory>=80GiB", {"a0": 3}),
}
"""Jobs of a user with a limit of two, as fewest and most devices; what the job of another needs."""


@pytest.fixture(name="queue")
def queue_maker(device):
    """Make a queue of four T4, or of other devices."""

    def make(*devices, pools=(), **settings):
        return QueueState(
            devices or [device("t4", number) for number in range(4)],
            pools,
            QueueSettings(**settings),
        )

    return make


def submit(state, now, *requests):
    """Submit jobs and plan; what each has then."""
    for request in requests:
        state.handle(JobSubmitted(request), now)
    return planned(state, now)


def planned(state, now):
    """Job to the number of its devices, after a plan."""
    decide(state, now)
    return {name: len(job.devices) for name, job in state.jobs.items() if job.devices}


def test_a_job_alone_has_all_and_shrinks_for_another(queue, request_of):
    """And grows back when the other has ended."""
    state = queue()
    assert submit(state, 0, request_of("a", work=7200.0)) == {"a": 4}
    assert submit(state, 60, request_of("b", max_devices=1)) == {"a": 3, "b": 1}
    state.handle(JobFinished("b"), 120)
    assert planned(state, 120) == {"a": 4}


def test_a_high_job_shrinks_low_ones_and_pauses_none_that_it_need_not(queue, request_of):
    """The low one keeps what the high one cannot use."""
    state = queue()
    assert submit(state, 0, request_of("low", priority="low")) == {"low": 4}
    high = request_of("high", priority="high", max_devices=3, work=1e6)
    decisions = []
    state.handle(JobSubmitted(high), 1)
    decisions = decide(state, 1)
    assert [(each.kind, each.job) for each in decisions] == [("shrink", "low"), ("start", "high")]
    assert "high" in decisions[0].reason


def test_the_shortest_comes_first_and_the_long_goes_on_beside_it(queue, request_of):
    """Who would be done first has the devices; nobody waits for ever."""
    state = queue()
    submit(state, 0, request_of("long", work=1e5), request_of("short", work=600.0))
    assert planned(state, 0) == {"short": 4}
    state.handle(JobFinished("short"), 900)
    assert planned(state, 900) == {"long": 4}


def test_a_fast_device_goes_to_whom_it_serves_most(queue, device, request_of):
    """Two jobs, one of which is as fast on a slow device."""
    state = queue(device("a100"), device("t4"))
    flat = request_of("flat", max_devices=1, rates={"a100": 1.0, "t4": 0.9})
    steep = request_of("steep", max_devices=1, rates={"a100": 1.0, "t4": 0.1})
    submit(state, 0, flat, steep)
    assert state.jobs["steep"].devices == ("a100-0",)
    assert state.jobs["flat"].devices == ("t4-0",)


def test_more_devices_that_would_be_slower_are_left(queue, request_of):
    """Where links were measured, the job grows as long as it gets faster."""
    costs = {"t4": 2.0}  # a second device gains 0.2 and costs as much for each doubling
    state = queue()
    assert submit(state, 0, request_of("a", communication_seconds=costs, work=1e5))["a"] < 4


@pytest.mark.parametrize(("seconds", "number"), [(40.0, 1), (7200.0, 4)])
def test_nothing_is_resized_for_less_than_it_costs(queue, request_of, seconds, number):
    """A device that joins does nothing for 30 s: not for a job that has little left."""
    state = queue(start_seconds=30.0)
    state.handle(JobSubmitted(request_of("other", max_devices=3, priority="high")), 0)
    submit(state, 0, request_of("a", work=seconds * 0.2))
    state.handle(JobFinished("other"), 1)
    assert planned(state, 1) == {"a": number}


class TestPools:
    """Pools lend what is idle and take it back; users have limits."""

    def test_idle_devices_are_lent_and_taken_back(self, queue, device, request_of):
        """By shrinking; the borrower keeps its own."""
        state = queue(device("t4", 0, pool="prod"), device("t4", 1, pool="lab"))
        assert submit(state, 0, request_of("guest", pool="lab", work=9e4)) == {"guest": 2}
        assert submit(state, 9, request_of("own", pool="prod")) == {"guest": 1, "own": 1}

    def test_a_pool_that_does_not_lend_keeps_its_idle_devices(self, queue, device, request_of):
        """For its own."""
        pools = [DevicePool(pool="prod", lends=False)]
        devices = [device("t4", 0, pool="prod"), device("t4", 1, pool="lab")]
        state = queue(*devices, pools=pools)
        assert submit(state, 0, request_of("guest", pool="lab")) == {"guest": 1}

    def test_what_cannot_shrink_borrows_nothing(self, queue, device, request_of):
        """It could not be taken back."""
        state = queue(device("t4", 0, pool="prod"), device("t4", 1, pool="lab"))
        notebook = request_of("notebook", pool="lab", min_devices=2, is_shrinkable=False)
        assert submit(state, 0, notebook) == {}

    def test_nobody_moves_home_for_nothing(self, queue, device, request_of):
        """A lent device is as good, until somebody of its pool wants it."""
        state = queue(device("t4", 0, pool="prod"), device("t4", 1, pool="lab"))
        one = {"pool": "prod", "max_devices": 1}
        submit(state, 0, request_of("first", **one))
        submit(state, 1, request_of("second", work=9e9, **one))
        assert state.jobs["second"].devices == ("t4-1",)
        state.handle(JobFinished("first"), 2)
        planned(state, 2)
        assert state.jobs["second"].devices == ("t4-1",)
        submit(state, 3, request_of("owner", pool="lab", max_devices=1))
        assert state.jobs["second"].devices == ("t4-0",)
        assert state.jobs["owner"].devices == ("t4-1",)

    def test_a_users_limit_is_passed_while_nobody_else_wants(self, queue, request_of):
        """And kept when somebody does."""
        state = queue(pools=[DevicePool(max_devices_per_user=2)])
        assert submit(state, 0, request_of("a", work=600.0)) == {"a": 4}
        assert submit(state, 1, request_of("b", "bob", work=9e9)) == {"a": 2, "b": 2}

    @pytest.mark.parametrize("case", ABOVE.values(), ids=ABOVE.keys())
    def test_a_user_above_the_limit_gives_what_others_can_use(
        self, queue, device, request_of, case
    ):
        """Not only what was lent: a job that waits may have no use for that."""
        jobs, need, expected = case
        devices = [device(kind, 0) for kind in ("a100", "v100", "t4")]
        state = queue(*devices, pools=[DevicePool(max_devices_per_user=2)])
        for number, (fewest, most) in enumerate(jobs):
            wanted = {"min_devices": fewest, "max_devices": most, "work": 600.0 + number}
            submit(state, 0, request_of(f"a{number}", **wanted))
        needs = (DeviceNeed.parse(need),)
        found = submit(state, 1, request_of("b", "bob", work=9e9, needs=needs, max_devices=1))
        assert found == expected

    def test_a_job_is_moved(self, queue, device, request_of):
        """To another pool, whose devices it has then; not while it runs and cannot shrink."""
        pools = [DevicePool(pool="prod", lends=False), DevicePool(pool="lab", lends=False)]
        devices = [device("t4", 0, pool="prod"), device("v100", 0, pool="lab")]
        state = queue(*devices, pools=pools)
        submit(state, 0, request_of("a", pool="lab"))
        state.handle(JobMoved("a", "prod", "high"), 1)
        planned(state, 1)
        assert state.jobs["a"].devices == ("t4-0",)
        submit(state, 2, request_of("n", pool="lab", is_shrinkable=False))
        with pytest.raises(UserError, match="cannot shrink"):
            state.handle(JobMoved("n", "prod"), 3)


class TestReservations:
    """Waiting is bounded."""

    def test_who_has_waited_too_long_is_served_first(self, queue, request_of):
        """Before priorities, with its fewest, for a quantum."""
        state = queue(wait_limit_seconds=600.0, quantum_seconds=300.0)
        high = [request_of(f"high{n}", priority="high", work=1e6) for n in range(4)]
        submit(state, 0, *high, request_of("low", priority="low", min_devices=2))
        assert "low" not in planned(state, 599)
        assert planned(state, 600)["low"] == 2
        assert planned(state, 899)["low"] == 2
        assert "low" not in planned(state, 901)

    def test_a_deadline_that_presses_weighs_more(self, queue, request_of):
        """While it can be met; before and afterwards the shorter jobs come first."""
        state = queue()
        late = request_of("late", deadline_seconds=80000.0, max_devices=1, work=9000.0)
        others = (request_of(f"s{n}", max_devices=1, work=8000.0) for n in range(4))
        assert "late" not in submit(state, 0, *others, late)
        assert "late" in planned(state, 79000)
        assert "late" not in planned(state, 80001)

    def test_nothing_is_kept_for_whom_it_would_not_help(self, queue, request_of):
        """A user's limit holds it up, or there are too few devices at all."""
        state = queue(pools=[DevicePool(max_devices_per_user=2)], wait_limit_seconds=60.0)
        notebook = {"is_shrinkable": False, "time_limit_seconds": 9e4}
        submit(state, 0, request_of("a", min_devices=2, **notebook))
        submit(state, 0, request_of("more", **notebook))
        submit(state, 0, request_of("wide", "eve", min_devices=5, **notebook))
        found = submit(state, 100, request_of("b", "bob", min_devices=2, **notebook))
        assert found == {"a": 2, "b": 2}

    def test_what_never_shrinks_is_not_started_on_reserved_devices(self, queue, request_of):
        """But what would end before they are needed is: backfill."""
        state = queue(wait_limit_seconds=100.0)
        holder = request_of("holder", min_devices=3, is_shrinkable=False, time_limit_seconds=5000)
        wide = request_of("wide", min_devices=4, is_shrinkable=False)
        submit(state, 0, holder)
        submit(state, 1, wide)
        long = request_of("long", is_shrinkable=False, time_limit_seconds=6000)
        short = request_of("short", is_shrinkable=False, time_limit_seconds=1000)
        assert submit(state, 200, long, short) == {"holder": 3, "short": 1}
        assert submit(state, 1300, request_of("elastic")) == {"holder": 3, "elastic": 1}
        assert planned(state, 5001) == {"wide": 4}


class TestJobs:
    """What a job may ask for."""

    def test_a_notebook_is_never_shrunk_and_ends_with_its_time(self, queue, request_of):
        """Or when its devices do nothing."""
        state = queue()
        submit(state, 0, request_of("n", is_shrinkable=False, time_limit_seconds=100))
        submit(state, 0, request_of("m", is_shrinkable=False, idle_limit_seconds=50))
        assert submit(state, 1, request_of("h", priority="high")) == {"n": 1, "m": 1, "h": 2}
        state.handle(JobIdled("m", 51.0), 60)
        assert planned(state, 60) == {"n": 1, "h": 3}
        assert planned(state, 100) == {"h": 4}
        assert "nothing" in state.ended["m"].outcome
        assert "time limit" in state.ended["n"].outcome

    def test_needs_choose_devices(self, queue, device, request_of):
        """A job that fits on none waits."""
        state = queue(device("a100"), device("t4"))
        big = request_of("big", needs=(DeviceNeed.parse("memory>=16GiB"),))
        never = request_of("never", needs=(DeviceNeed.parse("node==nowhere"),))
        submit(state, 0, big, never)
        assert state.jobs["big"].devices == ("a100-0",)
        assert state.jobs["never"].devices == ()

    def test_elements_of_an_array_are_limited(self, queue, request_of):
        """So many at a time."""
        state = queue()
        array = [request_of(f"e{n}", array="sweep", array_limit=2, max_devices=1) for n in range(4)]
        assert submit(state, 0, *array) == {"e0": 1, "e1": 1}

    def test_who_follows_starts_after_a_success_only(self, queue, request_of):
        """And never after a failure."""
        state = queue()
        submit(state, 0, request_of("first"), request_of("then", after=("first",)))
        submit(state, 0, request_of("bad"), request_of("never", after=("bad",)))
        state.handle(JobFinished("first"), 10)
        state.handle(JobFailed("bad", "script_error"), 10)
        assert planned(state, 10) == {"then": 4}
        assert "bad" in state.ended["never"].outcome

    def test_a_failure_that_heals_is_tried_again_later(self, queue, request_of):
        """With all that was done; a script's error is not."""
        state = queue()
        submit(state, 0, request_of("a", retries=1))
        state.handle(JobProgressed("a", 99.0), 50)
        state.handle(JobFailed("a", "node_lost"), 50)
        assert planned(state, 59) == {}
        assert planned(state, 60) == {"a": 4}
        assert state.jobs["a"].done_work == 99.0
        state.handle(JobFailed("a", "node_lost"), 61)
        assert state.ended["a"].outcome == "it failed: node lost"

    def test_held_jobs_give_back_what_they_have(self, queue, request_of):
        """Until they are released."""
        state = queue()
        submit(state, 0, request_of("a"))
        state.handle(JobHeld("a"), 1)
        assert planned(state, 1) == {}
        state.handle(JobReleased("a"), 2)
        assert planned(state, 2) == {"a": 4}


class TestDevices:
    """What leaves the cluster and comes."""

    @pytest.mark.parametrize("condition", ["lost", "failing", "guest_busy"])
    def test_a_job_goes_on_without_a_device_that_leaves(self, queue, request_of, condition):
        """And has it again when it is back."""
        state = queue()
        submit(state, 0, request_of("a"))
        state.handle(DeviceChanged("t4-1", condition), 1)
        assert planned(state, 1) == {"a": 3}
        assert "t4-1" not in state.jobs["a"].devices
        state.handle(DeviceChanged("t4-1", "ready"), 2)
        assert planned(state, 2) == {"a": 4}

    @pytest.mark.parametrize("condition", ["lost", "failing"])
    def test_a_job_that_cannot_shrink_is_started_anew(self, queue, request_of, condition):
        """On other devices, if it is granted another try."""
        state = queue()
        submit(state, 0, request_of("n", is_shrinkable=False, retries=1))
        lost = state.jobs["n"].devices[0]
        state.handle(DeviceChanged(lost, condition), 1)
        assert planned(state, 20) == {"n": 1}
        assert state.jobs["n"].devices != (lost,)

    def test_guests_have_nothing_that_cannot_shrink(self, queue, device, request_of):
        """Their owner comes first."""
        state = queue(device("t4", is_guest=True))
        assert submit(state, 0, request_of("n", is_shrinkable=False)) == {}
        assert submit(state, 0, request_of("a")) == {"a": 1}
        state.handle(DeviceAdded(device("t4", 1)), 5)
        assert planned(state, 5) == {"a": 1, "n": 1}

    def test_devices_on_a_job_s_own_node_come_first(self, queue, device, request_of):
        """Links within a node are short."""
        nodes = ("x", "y", "y", "x")
        state = queue(*(device("t4", n, node=node) for n, node in enumerate(nodes)))
        submit(state, 0, request_of("a", max_devices=2))
        assert state.jobs["a"].devices == ("t4-0", "t4-3")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (lambda r: JobSubmitted(r("a")), "in the queue already"),
        (lambda r: JobSubmitted(r("b", pool="no")), "no pool 'no'; there are default"),
        (lambda r: JobSubmitted(r("b", after=("no",))), "'no', which is unknown"),
        (lambda _: JobFinished("no"), "'no' is not in the queue"),
        (lambda _: JobMoved("a", "no"), "no pool 'no'"),
        (lambda _: DeviceChanged("no", "lost"), "'no' is not in the cluster"),
    ],
)
def test_what_there_is_not_is_refused(queue, request_of, event, words):
    """In one line, and nothing has changed."""
    state = queue()
    submit(state, 0, request_of("a"))
    with pytest.raises(UserError, match=words):
        state.handle(event(request_of), 1)
    assert planned(state, 1) == {"a": 4}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"min_devices": 0}, "min_devices must be at least 1"),
        ({"min_devices": 3, "max_devices": 2}, "max_devices must be at least min_devices"),
        ({"priority": "urgent"}, "priority must be of high, normal, low"),
        ({"work": 0.0}, "work must be above 0"),
        ({"rates": {"t4": math.nan}}, "rates must be of at least 0"),
        ({"communication_seconds": {"t4": -1.0}}, "communication_seconds must"),
        ({"time_limit_seconds": 0.0}, "time_limit_seconds must be above 0"),
        ({"idle_limit_seconds": -1.0}, "idle_limit_seconds must be above 0"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"array_limit": -1}, "array_limit must be at least 0"),
        ({"after": ("a",)}, "after must not name the job itself"),
        ({"is_shrinkable": False, "time_limit_seconds": math.inf}, "needs time_limit_seconds"),
    ],
)
def test_what_could_never_run_is_refused(request_of, fields, words):
    """With the name of the job and of the field."""
    with pytest.raises(UserError, match=f"job a: .*{words}"):
        request_of("a", **fields)


def test_kinds_that_were_not_measured_are_as_fast_as_their_relative_speed(device, request_of):
    """Scaled by the kinds that were."""
    table = ClassTable([device("a100"), device("t4")], {})
    speeds = table.speeds_for(request_of("a", rates={"a100": 300.0}))
    assert speeds.best_rate == 300.0
    assert speeds.speeds == pytest.approx((1.0, 0.2))


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (119, "119 s"), (720, "12 min"), (9000, "2 h"), (2e5, "2 d")]
)
def test_times_are_told_in_one_unit(seconds, words):
    """For people."""
    assert in_words(seconds) == words


def test_a_job_that_asked_for_a_node_leaves_no_trace(device, request_of):
    """The next hub weighs the same classes."""
    devices = [device("t4", number, node=f"n{number}") for number in range(2)]
    state = QueueState(devices)
    needs = (DeviceNeed.parse("node==n1"),)
    state.handle(JobSubmitted(request_of("picky", needs=needs)), 0)
    assert state.table.nodes == ("", "n1")
    state.handle(JobFinished("picky"), 10)
    again = QueueState(devices)
    again.put_back(state.facts, state.ended.values())
    assert state.table.nodes == again.table.nodes == ("",)
