"""Part `speed`: traces, the profile's cost, the share of the ideal, and what staging costs."""

from __future__ import annotations

import gzip
import json
import sqlite3
import statistics
from contextlib import closing
from functools import partial

from gpu_check.clusters import ALL, CPUS, JOB, Run, check_there, node, train
from gpu_check.site import Check, CheckError, Figure, Site, at_least, at_most

MODEL = {"precision": "float32", "width": 1024, "depth": 4, "batch": 1024, "keeps": False}
SIZES = {"1M": (512, 4), "8M": (1400, 4), "64M": (4000, 4)}
"""Parameters to width and depth."""

MAX_PROFILE_SECONDS = 0.0005
"""Of each step; on a CPU 0.1 to 0.3 ms: docs/limitations.md."""

LEAST_OF_IDEAL = 0.5
WORKLOAD = ("python", "-m", "benchmarks.workloads.profile")


def kernels(site: Site) -> Figure:
    """A trace of the card's worker holds the kernels that ran on it."""
    flags = ["--trace-steps", "6:9", "--trace-workers", "card:0"]
    run = train(site, "traces", flags=flags, nodes=("card", "cpu1"), **(MODEL | {"epochs": 4}))
    files = sorted((run.folder / "out" / "traces").glob("card-0*.trace.json.gz"))
    if not files:
        raise CheckError(f"no trace was written: see {run.folder}")
    with gzip.open(files[0]) as file:
        events = json.load(file)["traceEvents"]
    number = sum(event.get("cat") == "kernel" for event in events)
    phases = sum(event.get("name") in {"forward", "backward"} for event in events)
    at_least(number, 1, "kernels in the trace")
    at_least(phases, 1, "phases in the trace")
    return Figure(float(number), "kernels", {"events": len(events), "phases": phases})


def profile(site: Site) -> Figure:
    """The time that every call of the profile takes, in a training of small steps."""
    job = {"batch_size": 512, "num_steps": 60}
    run = train(site, "profile", nodes=("card",), script=WORKLOAD, **job)
    found = json.loads((run.folder / "result.json").read_text())
    own = statistics.median(found["parts"]["profile"][10:])
    step = statistics.median(found["step_seconds"][10:])
    if site.has_card:
        at_most(own, MAX_PROFILE_SECONDS, "seconds of the profile in a step")
    at_most(own / step, 0.5, "part of a step that the profile takes")
    return Figure(1e3 * own, "ms of a step", {"step_ms": 1e3 * step, "share": own / step})


def samples_per_second(run: Run, batch: int) -> float:
    """In the second half of a training."""
    left = next(iter(run.left.values()), None)
    if left is None:
        raise CheckError(f"nobody came to the end: see {run.folder}")
    seconds = left["step_seconds"]
    return batch / statistics.median(seconds[len(seconds) // 2 :])


def ideal(site: Site) -> Figure:
    """Samples per second of all, beside the sum of what card and CPU workers do by themselves.

    CPU workers that get no samples and hold up the card are set aside before it is measured.
    """
    job = MODEL | {"epochs": 6, "steps_per_epoch": 8}
    longer = job | {"steps_per_epoch": 40}
    names = {"card": ("card",), "cpus": CPUS, "all": ALL}
    found = {}
    for name, nodes in names.items():
        flags = ("--set-aside", "always", "--set-aside-seconds", "0")
        more = longer if name == "all" else job
        run = train(site, f"ideal-{name}", nodes=nodes, flags=flags, **more)
        if name != "all":
            check_there(run, nodes)
        found[name] = samples_per_second(run, MODEL["batch"])
    share = found["all"] / (found["card"] + found["cpus"])
    at_least(share, LEAST_OF_IDEAL, "share of the ideal")
    return Figure(share, "of the ideal", found)


def staged(site: Site, size: str) -> Figure:
    """Part of a step in which a worker waits for sums through the host's memory, for one model.

    Two workers of one card are equally fast, so that the wait is not for the other's compute.
    """
    equal = {"emulate": {"relative_speed": 1.0}}
    names = ("card1", "card2")
    width, depth = SIZES[size]
    job = MODEL | {"width": width, "depth": depth, "epochs": 8}
    run = train(site, f"staged-{size}", nodes=[node(site, n, **equal) for n in names], **job)
    check_there(run, names)
    share = waited_share(run)
    at_most(share, 0.95, "part of a step that is waited")
    seconds = run.left["card1"]["step_seconds"]
    step_ms = 1e3 * statistics.median(seconds[len(seconds) // 2 :])
    facts = {"parameters": run.left["card1"]["num_parameters"], "step_ms": step_ms}
    return Figure(share, "of a step", facts)


def waited_share(run: Run) -> float:
    """Exposed waits for sums, as a part of the steps, from the run's records."""
    with closing(sqlite3.connect(run.folder / "out" / "run.sqlite")) as database, database:
        (waited, steps) = database.execute(
            "SELECT min(waited), max(steps) FROM (SELECT sum(comm_wait_seconds) AS waited, "
            "sum(step_seconds) AS steps FROM rollups GROUP BY worker)"
        ).fetchone()
    if not steps:
        raise CheckError(f"no step was recorded: see {run.folder}")
    return float(waited / steps)


def benchmark(site: Site) -> Figure:
    """What `hetero-hvd benchmark` finds of the card and a CPU, with a model's own steps."""
    folder = site.folder("benchmark")
    nodes = [node(site, name) for name in ("card", "cpu1")]
    (folder / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    (folder / "job.json").write_text(json.dumps(MODEL | {"device": site.device, "epochs": 4}))
    command = [site.python, "-m", "hetero_hvd", "benchmark", "-f", str(folder / "nodes.yaml")]
    command += ["--fresh", "--json", "--", str(JOB), str(folder)]
    printed = site.run(command, log=folder / "printed")
    found, _ = json.JSONDecoder().raw_decode(printed, f"\n{printed}".index("\n{"))
    facts = {}
    for slot in found["slots"]:
        speeds = {
            speed["dtype"]: speed["per_second"]
            for speed in slot["device"]["speeds"]
            if speed["what"] == "matrix product"
        }
        facts[slot["worker"]] = {
            "device": slot["device"]["device"],
            "products_per_second": speeds,
            "seconds_per_sample": slot["model"]["seconds_per_sample"],
            "overhead_seconds": slot["model"]["overhead_seconds"],
            "spreads": [size["spread_ratio"] for size in slot["model"]["sizes"]],
        }
    card, cpu = facts["card:0"], facts["cpu1:0"]
    ratio = cpu["seconds_per_sample"] / card["seconds_per_sample"]
    if site.has_card:
        at_least(ratio, 1.0, "time per sample of the CPU / of the card")
    return Figure(card["products_per_second"]["bfloat16"] / 1e12, "T/s in bfloat16", facts)


CHECKS = {
    "benchmark": Check(benchmark, "what a node's benchmark finds of the card"),
    "traces": Check(kernels, "traces hold the card's kernels", needs_card=True),
    "profile": Check(profile, "what the profile takes of a step"),
    "ideal": Check(ideal, "speed of all beside the sum of their speeds", needs_card=True),
    **{
        f"staging-{size}": Check(
            partial(staged, size=size),
            f"staged sums' part of a step of {size} parameters",
            needs_card=True,
        )
        for size in SIZES
    },
}
