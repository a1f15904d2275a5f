"""Part `trainers`: Hugging Face's and Lightning's on the card and a CPU, in low precision."""

from __future__ import annotations

from functools import partial

from gpu_check.clusters import alone, spread, train
from gpu_check.site import SCRIPTS, Check, CheckError, Figure, Site, at_most, skip_without

JOB = SCRIPTS / "gpu_check" / "trainer_job.py"
NODES = ("card", "cpu1")
PACKAGES = {"huggingface": "transformers", "lightning": "lightning.pytorch"}
MAX_LOSS_RATIO = {"float32": 1.001, "bf16": 1.1, "fp16": 1.2}
"""Of the last losses, to those of one process in float32; a scale that falls skips some steps."""


def learns(site: Site, trainer: str, precision: str) -> Figure:
    """Train on the card beside a CPU: both end alike, and as one process does."""
    skip_without(site, PACKAGES[trainer])
    name = f"{trainer}-{precision}"
    job = {"trainer": trainer, "precision": precision}
    run = train(site, name, nodes=NODES, script=(str(JOB),), **job)
    found = spread(run, NODES)
    at_most(found, 1e-3, "difference between replicas")
    exact = alone(site, f"{name}-alone", script=JOB, **(job | {"precision": "float32"}))
    losses = run.card["losses"]
    if len(losses) != len(exact["losses"]):
        raise CheckError(f"{len(losses)} steps, {len(exact['losses'])} in one process")
    ratio = sum(losses[-5:]) / sum(exact["losses"][-5:])
    at_most(ratio, MAX_LOSS_RATIO[precision], f"loss in {precision} beside one process's")
    facts = {"spread": found, "devices": [left["device"] for left in run.left.values()]}
    return Figure(ratio, "loss / that of one process", facts | {"losses": losses[-3:]})


CHECKS = {
    f"{trainer}-{precision}": Check(
        partial(learns, trainer=trainer, precision=precision),
        f"{PACKAGES[trainer]} in {precision} on card and CPU",
    )
    for trainer, precision in (
        ("huggingface", "float32"),
        ("huggingface", "bf16"),
        ("huggingface", "fp16"),
        ("lightning", "float32"),
        ("lightning", "bf16"),
    )
}
