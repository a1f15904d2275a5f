"""Part `faults`: memory that ends, a worker that is killed, a card that two workers want."""

from __future__ import annotations

from gpu_check.clusters import alone, distance, node, train
from gpu_check.site import Check, CheckError, Figure, Site, at_most
from gpu_check.training import TOLERANCE

FAULT_STEP = 4


def oom(site: Site) -> Figure:
    """The memory of the card ends in a step: the same step is finished in smaller pieces."""
    run = train(site, "oom", fault="oom", step=FAULT_STEP)
    sizes = [size for step, size in run.card["calls"] if step == FAULT_STEP]
    if not sizes or min(sizes) >= sizes[0]:
        raise CheckError(f"no smaller micro-batch was tried in step {FAULT_STEP}: {sizes}")
    found = distance(run.card["parameters"], alone(site, "oom-alone")["parameters"])
    at_most(found, TOLERANCE, "difference of a parameter")
    return Figure(sizes[0] / min(sizes), "times smaller", {"sizes": sizes, "difference": found})


def kill(site: Site) -> Figure:
    """The card's worker is killed: the others go on, no sample is lost or taken twice."""
    run = train(site, "kill", fault="kill", step=FAULT_STEP)
    if not (run.folder / "met").exists():
        raise CheckError("the worker was never killed")
    expected = alone(site, "kill-alone")["parameters"]
    found = max(distance(left["parameters"], expected) for left in run.left.values())
    at_most(found, TOLERANCE, "difference of a parameter")
    return Figure(found, "largest difference", {"came_to_the_end": sorted(run.left)})


def two(site: Site) -> Figure:
    """Two workers on one card: refused, unless both are emulated."""
    pair = [node(site, name) for name in ("card1", "card2")]
    limits = ["--elastic-timeout-seconds", "20", "--min-np", "2"]
    refused = train(site, "two-refused", nodes=pair, flags=limits, expected_code=None)
    if "has its GPU" not in refused.printed:
        raise CheckError(f"the second worker was not refused: see {refused.folder}/printed")
    emulated = [each | {"emulate": {"relative_speed": 1.0}} for each in pair]
    run = train(site, "two", nodes=emulated)
    expected = alone(site, "two-alone")["parameters"]
    if len(run.left) != len(pair):
        raise CheckError(f"these workers came to the end: {sorted(run.left)}")
    found = max(distance(left["parameters"], expected) for left in run.left.values())
    at_most(found, TOLERANCE, "difference of a parameter")
    return Figure(found, "largest difference", {"refused": True})


CHECKS = {
    "oom": Check(oom, "out of memory: the step is finished in smaller micro-batches"),
    "kill": Check(kill, "the card's worker is killed: the others go on exactly"),
    "two-on-one-card": Check(two, "two workers on one card", needs_card=True),
}
