"""What holds for the queue whatever happens: a machine of events, and two laws over long times."""

from __future__ import annotations

import math

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.healing import FAILURE_CAUSES
from hetero_hvd.core.queue.jobs import PRIORITIES, JobRequest, QueuedJob
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.core.queue.queue_events import (
    DeviceChanged,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobIdled,
    JobMeasured,
    JobMoved,
    JobProgressed,
    JobReleased,
    JobSubmitted,
    LinksMeasured,
)
from hetero_hvd.core.queue.queue_plan import decide, plan
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.queue.queue_state import QueueFacts, QueueState
from hetero_hvd.core.queue.why_waiting import why

GIB = 1 << 30
SPEEDS = {"a100": 1.0, "v100": 0.5, "t4": 0.2}
MEMORY = {"a100": 40 * GIB, "v100": 16 * GIB, "t4": 8 * GIB}
USERS = ("ann", "bob", "eve")
POOLS = ("prod", "lab")
NEEDS = ("memory>=10GiB", "kind!=t4", "node==n1")


def cluster():
    """Two pools with three devices each, one of them a guest's."""
    kinds = (("a100", "prod"), ("v100", "prod"), ("t4", "prod"))
    kinds += (("a100", "lab"), ("t4", "lab"), ("t4", "lab"))
    return [
        QueueDevice(
            device=f"d{number}",
            kind=kind,
            node=f"n{number % 3}",
            pool=pool,
            memory_bytes=MEMORY[kind],
            relative_speed=SPEEDS[kind],
            is_guest=number == 5,
        )
        for number, (kind, pool) in enumerate(kinds)
    ]


requests = st.fixed_dictionaries(
    {
        "user": st.sampled_from(USERS),
        "pool": st.sampled_from(POOLS),
        "priority": st.sampled_from(PRIORITIES),
        "min_devices": st.integers(1, 3),
        "more": st.integers(0, 4),
        "needs": st.sets(st.sampled_from(NEEDS), max_size=1),
        "is_shrinkable": st.booleans(),
        "work": st.one_of(st.just(math.nan), st.floats(10, 1e5)),
        "retries": st.integers(0, 2),
        "array_limit": st.integers(0, 2),
        "deadline_seconds": st.one_of(st.just(math.inf), st.floats(0, 1e5)),
    }
)


class QueueMachine(RuleBasedStateMachine):
    """Submits, ends, crashes, node losses, clock jumps, cancels, holds, moves, guests."""

    @initialize(limit=st.integers(0, 3), lends=st.booleans())
    def start(self, limit, lends):
        """An empty queue."""
        pools = [
            DevicePool(pool="prod", max_devices_per_user=limit),
            DevicePool(pool="lab", lends=lends),
        ]
        self.state = QueueState(cluster(), pools, QueueSettings(wait_limit_seconds=3600.0))
        self.now = 0.0
        self.count = 0
        self.held = {}

    @rule(facts=requests, follows=st.booleans(), data=st.data())
    def submit(self, facts, follows, data):
        """Somebody submits a job."""
        facts = dict(facts)
        fewest, more = facts["min_devices"], facts.pop("more")
        known = sorted(self.state.jobs) + sorted(self.state.ended)
        after = (data.draw(st.sampled_from(known)),) if follows and known else ()
        request = JobRequest(
            job=f"j{self.count}",
            max_devices=fewest + more,
            rates=SPEEDS,
            after=after,
            array="many" if facts["array_limit"] else "",
            time_limit_seconds=math.inf if facts["is_shrinkable"] else 3600.0,
            idle_limit_seconds=1800.0,
            **facts | {"needs": tuple(map(DeviceNeed.parse, facts["needs"]))},
        )
        self.count += 1
        self.state.handle(JobSubmitted(request), self.now)
        self.decide()

    @precondition(lambda self: self.state.jobs)
    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["finish", "fail", "cancel", "hold", "release", "move", "idle", "measure"]
        ),
    )
    def change_a_job(self, data, what):
        """A job ends, crashes, is cancelled, held, released or moved."""
        name = data.draw(st.sampled_from(sorted(self.state.jobs)))
        job = self.state.jobs[name]
        if what in ("finish", "fail", "idle") and not job.devices:
            return
        is_fixed = bool(job.devices) and not job.request.is_shrinkable
        pool = job.request.pool if is_fixed else data.draw(st.sampled_from(POOLS))
        events = {
            "finish": lambda: JobFinished(name),
            "fail": lambda: JobFailed(name, data.draw(st.sampled_from(FAILURE_CAUSES))),
            "cancel": lambda: JobCancelled(name),
            "hold": lambda: JobHeld(name),
            "release": lambda: JobReleased(name),
            "move": lambda: JobMoved(name, pool, data.draw(st.sampled_from(PRIORITIES))),
            "measure": lambda: JobMeasured(
                name,
                data.draw(st.sampled_from([math.nan, 500.0])),
                {"a100": 7.0, "t4": 3.0},
                *data.draw(st.sampled_from([(0.0, 0.0), (1e6, 0.0), (1e9, 0.5)])),
            ),
            "idle": lambda: JobIdled(name, data.draw(st.sampled_from([0.0, 600.0, 2000.0]))),
        }
        self.state.handle(events[what](), self.now)
        self.decide()

    @rule(number=st.integers(0, 5), condition=st.sampled_from(["ready"] * 3 + ["lost", "failing"]))
    def change_a_device(self, number, condition):
        """A node is lost or comes back, the guard takes a device out; or its owner wants it."""
        guest = condition == "failing" and number == 5
        event = DeviceChanged(f"d{number}", "guest_busy" if guest else condition)
        self.state.handle(event, self.now)
        self.decide()

    @rule(
        nodes=st.sets(st.sampled_from(["n0", "n1", "n2"]), min_size=1),
        seconds_per_byte=st.sampled_from([1e-11, 1e-9, 1e-7]),
    )
    def measure_links(self, nodes, seconds_per_byte):
        """A job's reductions tell of the links of its nodes."""
        self.state.handle(LinksMeasured(tuple(nodes), seconds_per_byte, 1e9), self.now)
        self.decide()

    @rule(seconds=st.sampled_from([-1e6, -30.0, 0.0, 1.0, 60.0, 900.0, 4000.0, 1e6]))
    def let_time_pass(self, seconds):
        """Clocks jump to and fro; jobs do what they can meanwhile."""
        before = self.state.clock_seconds
        self.now += seconds
        clock = self.state.advance(self.now)
        assert clock >= before
        for name, job in list(self.state.jobs.items()):
            if job.devices:
                done = job.done_work + 0.3 * max(0.0, clock - before)
                self.state.handle(JobProgressed(name, done), self.now)
        self.decide()

    @rule()
    def crash(self):
        """The hub is killed: what was kept decides as what was lost would have."""
        facts = msgspec.msgpack.decode(msgspec.msgpack.encode(self.state.facts), type=QueueFacts)
        jobs = [*self.state.ended.values(), *self.state.jobs.values()]
        kept = [
            msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=QueuedJob)
            for job in sorted(jobs, key=lambda job: job.number)
        ]
        pools, devices = self.state.pools.values(), self.state.devices.values()
        again = QueueState(devices, tuple(pools), self.state.settings)
        again.put_back(facts, kept)
        now = self.state.clock_seconds
        assert repr(again.jobs) == repr(self.state.jobs)
        assert sorted(map(repr, again.ended.items())) == sorted(map(repr, self.state.ended.items()))
        assert plan(again, now) == plan(self.state, now)
        self.state = again

    def decide(self):
        """Plan twice: equal states give equal plans, and a plan that is carried out stays."""
        self.state.advance(self.now)
        first = plan(self.state, self.state.clock_seconds)
        assert first == plan(self.state, self.state.clock_seconds)
        before = {name: job.devices for name, job in self.state.jobs.items()}
        for decision in decide(self.state, self.now):
            if decision.kind != "end":
                kept = before.get(decision.job)
                assert kept is not None
                assert (decision.kind == "start") == (not kept)
                assert (decision.kind == "pause") == (not decision.devices)
            assert decision.reason
        for name, devices in before.items():
            job = self.state.jobs.get(name)
            if job and devices and not job.request.is_shrinkable:
                assert job.devices == devices

    def holders(self):
        """Device to the job that has it; no device twice."""
        found = {}
        for job in self.state.jobs.values():
            for device in job.devices:
                assert device not in found
                found[device] = job
        return found

    def able(self, job, pools):
        """Names of the devices of some pools that a job may use."""
        request = job.request
        return {
            each.device
            for each in self.state.devices.values()
            if each.pool in pools
            and each.condition == "ready"
            and (request.is_shrinkable or not each.is_guest)
            and all(
                need.is_met_by(memory_bytes=each.memory_bytes, kind=each.kind, node=each.node)
                for need in request.needs
            )
        }

    def limit(self, job):
        """The most devices of its pool that its user may have."""
        return self.state.pools[job.request.pool].max_devices_per_user or math.inf

    def num_held_by(self, user, pool):
        """Devices of a pool that a user's jobs of that pool have."""
        return sum(
            self.state.devices[device].pool == pool
            for job in self.state.jobs.values()
            if (job.request.user, job.request.pool) == (user, pool)
            for device in job.devices
        )

    def wanting(self):
        """Jobs that could start now, but for devices."""
        arrays = {}
        for job in self.state.jobs.values():
            if job.devices and job.request.array:
                arrays[job.request.array] = arrays.get(job.request.array, 0) + 1
        for job in self.state.jobs.values():
            request = job.request
            room = not request.array_limit or arrays.get("many", 0) < request.array_limit
            if not job.devices and room and self.state.is_ready(job):
                yield job

    @invariant()
    def each_job_has_what_it_may_have(self):
        """No device twice; ready ones that fulfil its needs; as many as it runs on."""
        self.holders()
        for job in self.state.jobs.values():
            request = job.request
            lenders = {pool for pool in POOLS if self.state.pools[pool].lends}
            pools = {request.pool} | (lenders if request.is_shrinkable else set())
            assert set(job.devices) <= self.able(job, pools)
            if job.devices:
                assert request.min_devices <= len(job.devices) <= request.most_devices
                assert not job.is_held or not request.is_shrinkable

    @invariant()
    def quotas_are_passed_by_lending_only(self):
        """What is above a limit, or of another pool, is back as soon as its owner wants it."""
        holders = self.holders()
        for job in self.wanting():
            if job.request.min_devices > 1:
                continue
            request = job.request
            own = self.able(job, {request.pool})
            if self.num_held_by(request.user, request.pool) >= self.limit(job):
                continue
            for device in own & holders.keys():
                holder = holders[device]
                assert holder.request.pool == request.pool
                user = holder.request.user
                over = self.num_held_by(user, request.pool) > self.limit(holder)
                is_kept = holder.keeps_until_seconds > self.state.clock_seconds
                is_kept = is_kept and len(holder.devices) <= holder.request.min_devices
                may_give = holder.request.is_shrinkable and not is_kept
                assert not over or not may_give or user == request.user

    @invariant()
    def what_cannot_shrink_never_passes_a_limit(self):
        """It could not be taken back."""
        for user in USERS:
            fixed = [
                job
                for job in self.state.jobs.values()
                if job.request.user == user and not job.request.is_shrinkable and job.devices
            ]
            for job in fixed:
                same = [each for each in fixed if each.request.pool == job.request.pool]
                assert sum(len(each.devices) for each in same) <= self.limit(job)

    @invariant()
    def no_device_idles_that_somebody_wants(self):
        """Work conserving: a job that shrinks starts on what is idle, own or lent."""
        idle = {name for name, d in self.state.devices.items() if d.condition == "ready"}
        idle -= self.holders().keys()
        for job in self.wanting():
            lenders = {pool for pool in POOLS if self.state.pools[pool].lends}
            pools = {job.request.pool} | (lenders if job.request.is_shrinkable else set())
            if job.request.is_shrinkable:
                assert len(idle & self.able(job, pools)) < job.request.min_devices

    @invariant()
    def what_cannot_shrink_starts_where_nothing_is_reserved(self):
        """On idle devices of its pool, within its user's limit."""
        limit = self.state.settings.wait_limit_seconds
        waiting = list(self.wanting())
        if any(self.state.clock_seconds - j.waiting_since_seconds >= limit for j in waiting):
            return
        idle = {name for name, d in self.state.devices.items() if d.condition == "ready"}
        idle -= self.holders().keys()
        for job in waiting:
            request = job.request
            room = self.limit(job) - self.num_held_by(request.user, request.pool)
            if not request.is_shrinkable and room >= request.min_devices:
                assert len(idle & self.able(job, {request.pool})) < request.min_devices

    @invariant()
    def each_job_can_be_explained(self):
        """In one sentence without a line break."""
        for name in [*self.state.jobs, *self.state.ended]:
            words = why(self.state, name, self.state.clock_seconds)
            assert words.startswith(name)
            assert "\n" not in words

    @invariant()
    def whoever_has_ended_has_nothing(self):
        """And says why."""
        for job in self.state.ended.values():
            assert job.devices == ()
            assert job.outcome


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def endless(job, user, **more):
    """A job that never ends."""
    return JobRequest(job=job, user=user, pool="prod", rates=SPEEDS, work=math.inf, **more)


@settings(max_examples=12, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from(USERS), st.integers(1, 3), st.sampled_from(PRIORITIES), st.booleans()
        ),
        min_size=2,
        max_size=14,
    ),
)
def test_every_job_starts_within_its_bound(jobs):
    """However urgent the others are, and though none of them ever ends.

    A job is due after the wait limit. Then it waits for those that are due before it: they keep
    their fewest for a quantum each; and for what cannot shrink, whose time limit ends it.
    """
    limits = QueueSettings(wait_limit_seconds=3600.0, quantum_seconds=600.0)
    state = QueueState([d for d in cluster() if d.pool == "prod"], (), limits)
    for number, (user, fewest, priority, is_shrinkable) in enumerate(jobs):
        request = endless(
            f"j{number}",
            user,
            min_devices=fewest,
            max_devices=max(fewest, 3),
            priority=priority,
            is_shrinkable=is_shrinkable,
            time_limit_seconds=math.inf if is_shrinkable else 1800.0,
        )
        state.handle(JobSubmitted(request), 0.0)
    step = 60.0
    longest = sum(600.0 + step if shrinks else 1800.0 + step for _, _, _, shrinks in jobs)
    bound = 3600.0 + longest
    now = 0.0
    while now <= bound + step:
        decide(state, now)
        now += step
    for job in [*state.jobs.values(), *state.ended.values()]:
        assert job.first_started_at_seconds <= bound


@settings(max_examples=8, deadline=None)
@given(
    demands=st.lists(
        st.lists(st.tuples(st.integers(1, 6), st.floats(60, 1e5)), min_size=1, max_size=3),
        min_size=2,
        max_size=5,
    )
)
def test_every_user_gets_an_equal_part_when_all_want_it(demands):
    """At least 1/n of the normalised device-seconds, whatever lengths and widths their jobs have.

    A user may be behind by a few times the tolerance, however long it goes on.
    """
    limits = QueueSettings(
        tolerance_seconds=300.0, wait_limit_seconds=math.inf, half_life_seconds=1e12
    )
    devices = [d for d in cluster() if d.pool == "prod"]
    state = QueueState(devices, (), limits)
    for user, jobs in enumerate(demands):
        for number, (most, work) in enumerate(jobs):
            request = JobRequest(
                job=f"u{user}-{number}",
                user=f"u{user}",
                pool="prod",
                rates=SPEEDS,
                max_devices=most,
                work=work,
            )
            state.handle(JobSubmitted(request), 0.0)
    now, step, end = 0.0, 300.0, 100 * 3600.0
    count = 0
    while now < end:
        now += step
        decide(state, now)
        for name, job in list(state.jobs.items()):  # who is done submits the same again
            if job.devices and job.lease_seconds * 0.5 > job.request.work:
                state.handle(JobFinished(name), now)
                count += 1
                again = f"{name}.{count}"
                fields = {f: getattr(job.request, f) for f in ("user", "max_devices", "work")}
                request = JobRequest(job=again, pool="prod", rates=SPEEDS, **fields)
                state.handle(JobSubmitted(request), now)
        decide(state, now)  # else a user of short jobs wants nothing for half of the time
    used = [state.fair_share.used(f"u{user}", now) for user in range(len(demands))]
    total = sum(used)
    assert min(used) >= total / len(used) * 0.95
