"""Part `faults`: memory that ends, a worker that is killed, a card that two workers want."""

from __future__ import annotations

import re

from gpu_check.clusters import CPUS, alone, far, node, spread, train
from gpu_check.site import Check, CheckError, Figure, Site, at_most
from gpu_check.training import TOLERANCE

FAULT_STEP = 4
KILL_EPOCHS = 40
"""Long enough for the killed worker to come back: until then the others' steps take 0.5 s."""


def oom(site: Site) -> Figure:
    """The memory of the card ends in a step: the same step is finished in smaller pieces."""
    run = train(site, "oom", fault="oom", step=FAULT_STEP)
    sizes = [size for step, size in run.card["calls"] if step == FAULT_STEP]
    if not sizes or min(sizes) >= sizes[0]:
        raise CheckError(f"no smaller micro-batch was tried in step {FAULT_STEP}: {sizes}")
    found = far(run, alone(site, "oom-alone")["parameters"])
    at_most(found, TOLERANCE, "difference of a parameter")
    return Figure(sizes[0] / min(sizes), "times smaller", {"sizes": sizes, "difference": found})


def kill(site: Site) -> Figure:
    """The card's worker is killed: the others go on, it comes back, no sample is lost or twice."""
    run = train(site, "kill", fault="kill", step=FAULT_STEP, epochs=KILL_EPOCHS)
    if not (run.folder / "met").exists():
        raise CheckError("the worker was never killed")
    found = far(run, alone(site, "kill-alone", epochs=KILL_EPOCHS)["parameters"])
    at_most(found, TOLERANCE, "difference of a parameter")
    steps = {name: len(left["parts"]) for name, left in run.left.items()}
    at_most(steps["card"], max(steps[name] for name in CPUS) - 1, "steps of who was killed")
    return Figure(found, "largest difference", {"steps": steps})


def rounding(site: Site) -> Figure:
    """The CPU's worker is killed beside two whose last digits differ: nothing is taken back.

    Of AdamW's update a GPU rounds some roots and quotients in another way than a CPU does.
    """
    job = {"fault": "kill", "step": FAULT_STEP, "epochs": KILL_EPOCHS, "guilty": "cpu2:0"}
    job |= {"optimizer": "adamw", "precision": "float32", "width": 256}
    nodes = ("card", "cpu1", "cpu2")
    run = train(site, "rounding", nodes=nodes, **job)
    if not (run.folder / "met").exists():
        raise CheckError("the worker was never killed")
    found = spread(run, nodes)
    at_most(found, 0.0, "difference between replicas at the end")
    steps = {name: len(left["parts"]) for name, left in run.left.items()}
    at_most(steps["card"], job["epochs"] * 4 + 1, "steps, one of them taken twice")
    if "differ" in run.printed:
        raise CheckError(f"a replica was found to differ: see {run.folder}/printed")
    return Figure(found, "largest difference", {"steps": steps})


def two(site: Site) -> Figure:
    """Two workers on one card: refused, unless both are emulated."""
    pair = [node(site, name) for name in ("card1", "card2")]
    limits = ["--elastic-timeout-seconds", "20", "--min-np", "2"]
    refused = train(site, "two-refused", nodes=pair, flags=limits, expected_code=None)
    if not re.search(r"is in use: card\d:0 of \S+ .* has it", refused.printed):
        raise CheckError(f"the second worker was not refused: see {refused.folder}/printed")
    emulated = [each | {"emulate": {"relative_speed": 1.0}} for each in pair]
    run = train(site, "two", nodes=emulated)
    found = far(run, alone(site, "two-alone")["parameters"], ("card1", "card2"))
    at_most(found, TOLERANCE, "difference of a parameter")
    return Figure(found, "largest difference", {"refused": True})


CHECKS = {
    "oom": Check(oom, "out of memory: the step is finished in smaller micro-batches"),
    "kill": Check(kill, "the card's worker is killed: the others go on exactly, and it comes back"),
    "rounding": Check(rounding, "AdamW on card and CPUs: their rounding costs nothing"),
    "two-on-one-card": Check(two, "two workers on one card", needs_card=True),
}
