"""Workers measure themselves in the first step: it is balanced, and nothing of it can be lost."""

import json

import pytest

from tests.kit.fault_job import write_nodes
from tests.leftovers import wait_until

from .conftest import BATCH, assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SECONDS_PER_SAMPLE = {"alpha": 0.008, "beta": 0.04, "gamma": 0.04}
"""Five times as long on two of them, and long enough that a busy machine changes little."""

SHORT = {"epochs": 2, "step_seconds": 0.0}
KILL = {"worker": "beta:0", "step": 0, "kind": "kill"}
CASES = {
    "one is killed meanwhile": ({"calibrate": "auto"}, (KILL,), True),
    "nobody wants it": ({}, (), False),
}
"""Settings, faults in the first call of a loss function, and whether the first step is balanced."""


def entries(*names):
    """Emulated nodes."""
    return [
        {"name": name, "slots": 1, "devices": []}
        | {"emulate": {"seconds_per_sample": SECONDS_PER_SAMPLE[name]}}
        for name in names
    ]


def first_shares(job):
    """Of each membership, in its first exchange of timings: node to samples."""
    found, nodes = {}, ()
    *lines, _ = (job.folder / "out" / "timings.jsonl").read_text().split("\n")
    for line in lines:
        event = json.loads(line)
        if event["type"] == "WorkersJoined":
            nodes = [node for node, _ in event["workers"]]
        elif event["type"] == "StepsTimed" and event["rendezvous_id"] not in found:
            sizes = [row["local_batch_size"] for row in event["timings"]]
            found[event["rendezvous_id"]] = dict(zip(nodes, sizes, strict=True))
    return list(found.values())


@pytest.mark.parametrize("case", CASES)
def test_the_first_step_is_balanced(start, case):
    """Each sample is used once, whatever happens in passes that are thrown away."""
    settings, faults, is_balanced = CASES[case]
    lost = ("beta",) if faults else ()
    job = start(*faults, nodes=entries("alpha", *lost, "gamma"), settings=settings, **SHORT)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=2, workers=("alpha:0", "gamma:0"))
    assert (first_shares(job)[-1]["gamma"] < BATCH // 3) == is_balanced, job.console


def test_the_first_step_of_a_joiner_is_balanced(start):
    """It takes five times as long as one of the others, and has its share at once."""
    settings = {"calibrate": "auto"}
    job = start(nodes=entries("alpha", "beta"), epochs=1000, step_seconds=0.0, settings=settings)
    job.wait_for_step(2)
    write_nodes(job.nodes_file, entries("alpha", "beta", "gamma"), **job.settings)

    def joined():
        return [shares for shares in first_shares(job) if len(shares) == 3]

    wait_until(joined, 60, "an exchange of three workers")
    (shares,) = joined()
    assert shares["gamma"] < BATCH // 4 < shares["alpha"]
