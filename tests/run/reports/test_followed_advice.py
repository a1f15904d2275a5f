"""Advice is followed as it is printed, on jobs that are drawn: it brings what was said."""

from __future__ import annotations

import random
import shlex

import numpy as np
import pytest

from hetero_hvd.core.advice.advice import Worth
from hetero_hvd.messages import Judged, NodesPriced, RunEnded, RunStarted
from hetero_hvd.run.recordings.machine_advice import of_samples
from hetero_hvd.run.reports.advice import advised, in_words
from tests.kit.machine_load import GIB, KINDS, samples
from tests.kit.simulated_job import Diagnosis, SimulatedJob, no_delay

from .test_costs import HOUR, record

BATCH, FASTEST = 240, 0.004
RUN_SECONDS, SETTLE_SECONDS, LOOK_SECONDS = 50.0, 10.0, 20.0
NUM_DRAWS, MIN_HELD = 10, 9


class Heard(Diagnosis):
    """Keeps all that it has heard and said, with seconds."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def take(self, event, seconds):
        """See `Diagnosis`."""
        self.heard.append((seconds, event))
        number = len(self.events)
        plans = super().take(event, seconds)
        self.heard += [*self.events[number:], *((seconds, plan) for plan in plans)]
        return plans


def job_of(speeds, *, seed, delay=no_delay, **more):
    """One that computes at these speeds."""
    return SimulatedJob(
        [FASTEST / speed for speed in speeds.values()],
        BATCH,
        names=tuple(speeds),
        seed=seed,
        delay=delay,
        diagnosis=Heard(),
        **more,
    )


def recorded(folder, job, prices):
    """Its record, after it has trained."""
    job.run(RUN_SECONDS)
    verdict = Judged(step=job.step, findings=job.verdict(of_whole_run=True))
    events = [
        (0.0, RunStarted(run_id=folder.name, command=(), nodes=(), settings={})),
        (0.0, NodesPriced(per_hour=prices, unpriced=tuple(sorted(job_names(job) - set(prices))))),
        *((1.0 + seconds, event) for seconds, event in job.diagnosis.heard),
        (job.seconds + 2.0, verdict),
        (job.seconds + 3.0, RunEnded(exit_code=0, reason="done")),
    ]
    return record(folder, [(seconds / HOUR, event) for seconds, event in events])


def job_names(job):
    """Of its nodes."""
    return {worker.node for worker in job.workers}


def speed(job):
    """Samples per second from now on."""
    steps, seconds = job.step, job.seconds
    job.run(LOOK_SECONDS)
    return BATCH * (job.step - steps) / (job.seconds - seconds)


def drawn_speeds(generator, least=0.1):
    """Of three nodes."""
    return {"a": 1.0, "b": generator.uniform(least, 1.0), "c": generator.uniform(least, 1.0)}


def followed(tmp_path, seed, *, kind, is_waiting=""):
    """What an advice has promised, and what it has brought: goal to an interval and a gain."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    speeds = drawn_speeds(generator)
    size, removed = generator.uniform(0.2, 0.8), generator.uniform(0.2, 1.0)
    prices = {name: generator.uniform(0.2, 2.0) for name in speeds} if not is_waiting else {}

    def made(names, seed, left=1.0):
        wait = left * size if is_waiting else generator_wait
        slow = {"data_wait": wait} if is_waiting == "input" else {}
        reduction = wait if is_waiting != "input" else 0.001
        return job_of(
            {name: speeds[name] for name in names},
            seed=seed,
            delay=lambda *_: dict(slow),
            reduction_seconds=reduction,
            overhead_seconds=overhead,
        )

    generator_wait = generator.choice([0.001, 0.05, 0.2])
    overhead = generator.choice([0.01, 0.05, 0.1])
    job = made(speeds, seed)
    said = advised([recorded(tmp_path / f"{kind}{seed}", job, prices)], Worth())
    advice = next(each for each in said.advice if each.kind == kind)
    before, after = speed(job), made(speeds, seed + 1000, 1.0 - removed)
    staying = list(speeds)
    if kind == "placement":
        words = shlex.split(advice.command)
        out = {words[place + 1] for place, word in enumerate(words) if word == "--without"}
        assert out
        staying = [name for name in speeds if name not in out]
        after = made(staying, seed + 1000)
    after.run(SETTLE_SECONDS)
    ratio = speed(after) / before
    found = {"speed": ratio - 1.0}
    if prices:
        costs = [sum(prices[name] for name in names) for names in (staying, speeds)]
        found["money"] = 1.0 - costs[0] / costs[1] / ratio
    return [(gain, found[gain.goal]) for gain in advice.gains]


KINDS_OF_RUNS = {
    "nodes that are left out": {"kind": "placement"},
    "bound by input, which is loaded faster": {"kind": "limit", "is_waiting": "input"},
    "bound by its link, by which less goes": {"kind": "limit", "is_waiting": "communication"},
}


@pytest.mark.parametrize("name", KINDS_OF_RUNS)
def test_what_is_advised_of_a_run_brings_what_was_said(name, tmp_path):
    """In 9 of 10 at least; of what option is taken a drawn part of the waiting is away."""
    told = [followed(tmp_path, seed, **KINDS_OF_RUNS[name]) for seed in range(NUM_DRAWS)]
    assert all(told)
    held = [all(gain.low <= true <= gain.high for gain, true in pairs) for pairs in told]
    assert sum(held) >= MIN_HELD, told


def test_where_nothing_is_to_be_gained_nothing_is_advised(tmp_path):
    """Nodes that are worth their price and wait for nothing: in 20 of 20."""
    for seed in range(20):
        generator = random.Random(seed)  # noqa: S311 - no secret
        speeds = drawn_speeds(generator, least=0.3)
        prices = {name: value * generator.uniform(0.98, 1.02) for name, value in speeds.items()}
        job = job_of(speeds, seed=seed, overhead_seconds=0.005)
        said = advised([recorded(tmp_path / f"run{seed}", job, prices)], Worth())
        assert said.advice == (), (seed, said)


AT = 1.8e9 + np.arange(1800.0)


def machine(name, seed, **more):
    """What is advised of one at such work."""
    figures = KINDS[name][0](np.random.default_rng(seed), AT) | more
    return of_samples(samples(figures, AT), 1.0, Worth(), command="")


WORKING = {"input from disks": 0.6, "input from processors": 0.5, "input from a network": 0.5}
"""For such a part of the time the device works."""


@pytest.mark.parametrize("name", WORKING)
def test_what_is_advised_of_a_job_on_a_device_brings_what_was_said(name):
    """As above, by what its machine shows alone."""
    held = 0
    for seed in range(NUM_DRAWS):
        (advice,) = machine(name, seed).advice
        (gain,) = advice.gains
        left = random.Random(seed).uniform(0.0, 0.8)  # noqa: S311 - no secret
        works = WORKING[name]
        held += gain.low <= 1.0 / (works + left * (1.0 - works)) - 1.0 <= gain.high
    assert held >= MIN_HELD


def leak(seed):
    """Memory that grows."""
    rate = np.random.default_rng(seed).uniform(0.005, 0.02)
    return {"gpu.memory_used_bytes": (12 + rate * (AT - AT[0])) * GIB}


@pytest.mark.parametrize(
    ("kind", "of_seed"),
    [
        ("idle", lambda seed: machine("idle", seed)),
        ("memory", lambda seed: machine("compute", seed, **leak(seed))),
    ],
)
def test_what_promises_no_gain_says_so(kind, of_seed):
    """Instead of an interval."""
    for seed in range(NUM_DRAWS):
        said = of_seed(seed)
        (advice,) = said.advice
        assert (advice.kind, advice.gains) == (kind, ())
        assert "   gain    not known" in list(in_words(said))


def test_how_slow_a_node_will_be_again_is_not_promised(tmp_path):
    """It costs another part of each run."""
    folders = []
    for number in range(2):
        job = job_of({"a": 1.0, "b": 0.6, "c": 0.8}, seed=number)
        job.run(2 * SETTLE_SECONDS)
        job.delay = lambda worker, *_: {"backward": 0.5} if worker == 1 else {}
        folders.append(recorded(tmp_path / f"{number}", job, {}))
    said = advised(folders, Worth())
    (advice,) = (each for each in said.advice if each.kind == "recurring")
    assert advice.id == "recurring:b"
    assert not advice.gains
    assert all("of the run" in line for line in advice.evidence)
    assert "   gain    not known" in list(in_words(said))
