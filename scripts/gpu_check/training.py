"""Part `training`: one unequal cluster of the card and three CPU workers learns what one would."""

from __future__ import annotations

import math
import shutil
from typing import Any

from gpu_check.clusters import alone, check_unequal, far, spread, train
from gpu_check.site import Check, CheckError, Figure, Site, Skipped, at_least, at_most

TOLERANCE = 1e-9
"""Largest difference of a float64 parameter that sums in another order make."""

LOW_PRECISION = {"width": 256, "batch": 256, "epochs": 15}
MAX_LOSS_RATIO = 1.2
"""Of the last losses, to those of one process in float32, which skips no step."""

TOO_LARGE = 2.0**22
"""As the first scale of a loss, some doublings too large for float16."""


def gradients(site: Site) -> Figure:
    """The parameters after 12 steps, beside those of one process."""
    run = train(site, "gradients")
    found = far(run, alone(site, "alone")["parameters"])
    at_most(found, TOLERANCE, "difference of a parameter")
    facts = {"first_parts": check_unequal(run), "device": run.card["device"]}
    return Figure(found, "largest difference", facts)


def low(site: Site, precision: str, **more: Any) -> Figure:  # noqa: ANN401 - see `job.py`
    """Train in low precision: it learns as one process does, and all replicas agree."""
    job = LOW_PRECISION | {"precision": precision} | more
    run = train(site, precision, **job)
    exact = alone(site, f"{precision}-alone", **(job | {"precision": "float32"}))
    ratio = last_loss(run.card) / last_loss(exact)
    at_most(ratio, MAX_LOSS_RATIO, f"loss in {precision} beside one process in float32")
    facts = {"spread": spread(run), "losses": run.card["losses"][-3:]}
    at_most(facts["spread"], 1e-3, "difference between replicas")
    scales = {left["scale"] for left in run.left.values()}
    if len(scales) != 1:
        raise CheckError(f"the workers' loss scales differ: {scales}")
    return Figure(ratio, "loss / that of one process", facts | {"scale": scales.pop()})


def bf16(site: Site) -> Figure:
    """Autocast to bfloat16, on every worker."""
    return low(site, "bf16")


def fp16(site: Site) -> Figure:
    """Autocast to float16 with a scale that overflows at first: all skip the same steps."""
    figure = low(site, "fp16", loss_scale=TOO_LARGE)
    if not 1.0 <= figure.facts["scale"] < TOO_LARGE:
        raise CheckError(f"the loss scale never fell from {TOO_LARGE}: {figure.facts['scale']}")
    return figure


def last_loss(left: dict[str, Any]) -> float:
    """Mean of the last ten."""
    return sum(told_losses(left)[-10:]) / 10


def told_losses(left: dict[str, Any]) -> list[float]:
    """Those of steps that were applied: while the first ones are under way, none is known."""
    losses = [loss for loss in left["losses"] if math.isfinite(loss)]
    at_least(len(losses), 0.75 * len(left["losses"]), "losses that are numbers")
    return losses


def learns(site: Site, name: str, flags: list[str], **options: Any) -> Figure:  # noqa: ANN401
    """Train with steps under way while the device has a queue: replicas agree, the loss falls."""
    queue = 8 if site.has_card else 0
    run = train(
        site, name, flags=flags, width=256, batch=256, epochs=12, queue=queue, options=options
    )
    found = spread(run)
    at_most(found, TOLERANCE, "difference between replicas")
    ratio = last_loss(run.card) / told_losses(run.card)[0]
    at_most(ratio, 0.9, "last loss / first loss")
    steps = {left["num_steps"] for left in run.left.values()}
    if len(steps) != 1:
        raise CheckError(f"the workers have applied different numbers of steps: {steps}")
    return Figure(ratio, "last loss / first", {"spread": found, "num_steps": steps.pop()})


def stale(site: Site) -> Figure:
    """Two steps under way, from the first on."""
    flags = ["--staleness-bound", "2", "--staleness-warmup-steps", "0"]
    return learns(site, "stale", flags)


def wait_free(site: Site) -> Figure:
    """Chunks until the step before is reduced."""
    figure = learns(site, "wait-free", ["--wait-free"], micro_batch_size=16)
    at_least(figure.facts["num_steps"], 2, "steps")
    return figure


def compiled(site: Site) -> Figure:
    """torch.compile, with its default mode."""
    return compiled_in(site, "default")


def graphs(site: Site) -> Figure:
    """torch.compile in the mode that records CUDA graphs."""
    figure = compiled_in(site, "reduce-overhead")
    for what in ("recorded", "launched"):
        at_least(figure.facts["graphs"][what], 1, f"CUDA graphs that were {what}")
    return figure


def compiled_in(site: Site, mode: str) -> Figure:
    """A compiled model's parameters beside those of one process that is not."""
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        raise Skipped("no C compiler: torch.compile cannot work here")
    job = {"precision": "float32", "width": 256, "batch": 256}
    nodes = ("card", "cpu1")
    run = train(site, f"compiled-{mode}", nodes=nodes, compile=mode, **job)
    found = far(run, alone(site, f"compiled-{mode}-alone", **job)["parameters"], nodes)
    at_most(found, 1e-3, "difference of a parameter")
    facts = {"seconds_of_steps": run.card["step_seconds"][-3:], "graphs": run.card["graphs"]}
    return Figure(found, "largest difference", facts)


CHECKS = {
    "gradients": Check(gradients, "gradients are those of one process, whatever the parts"),
    "bf16": Check(bf16, "bfloat16 on all workers learns as float32 does"),
    "fp16": Check(fp16, "float16 with GradScaler: all skip the same steps"),
    "staleness": Check(stale, "two steps under way, with work queued on the device"),
    "wait-free": Check(wait_free, "wait-free rounds, with work queued on the device"),
    "compile": Check(compiled, "torch.compile"),
    "cuda-graphs": Check(graphs, "CUDA graphs through torch.compile", needs_card=True),
}
