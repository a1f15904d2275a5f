"""Part `examples`: what a real model's step costs with hetero_hvd, beside the plain script."""

from __future__ import annotations

import json
import statistics
from typing import Any

from gpu_check.clusters import ALLOCATOR, train
from gpu_check.site import (
    CHECKOUT,
    SCRIPTS,
    Check,
    CheckError,
    Figure,
    Site,
    at_most,
    skip_without,
)

JOB = SCRIPTS / "gpu_check" / "example_job.py"
EXAMPLES = CHECKOUT / "docs" / "examples"
SMALL = ("--layers", "1", "--heads", "2", "--width", "16", "--block", "64")
MAX_RATIO = 1.1
MAX_LOSS_DIFFERENCE = 0.05
"""At the end, in bfloat16, where sums in another order are rounded otherwise."""


def gpt2(site: Site) -> Figure:
    """GPT-2 of 124 million parameters in bfloat16, on the card alone: time of a step."""
    skip_without(site, "transformers")
    texts = CHECKOUT / ("hetero_hvd" if site.has_card else "scripts/gpu_check")
    arguments = [str(texts), "--suffixes", ".py", *(() if site.has_card else SMALL)]
    arguments += ["--precision", "bf16", "--in-order"]
    folder = site.folder("gpt2-plain")
    job: dict[str, Any] = {"example": str(EXAMPLES / "gpt2_plain.py"), "arguments": arguments}
    (folder / "job.json").write_text(json.dumps(job))
    site.run([site.python, str(JOB), str(folder)], log=folder / "printed", **ALLOCATOR)
    plain = json.loads((folder / "left-alone.json").read_text())
    job["example"] = str(EXAMPLES / "gpt2.py")
    ours = train(site, "gpt2", nodes=("card",), script=(str(JOB),), **job).card
    if len(ours["losses"]) != len(plain["losses"]):
        raise CheckError(f"{len(ours['losses'])} steps, {len(plain['losses'])} in the plain script")
    far = abs(ours["losses"][-1] - plain["losses"][-1])
    at_most(far, MAX_LOSS_DIFFERENCE, "difference of the last loss from the plain script's")
    step_ms = [1e3 * in_second_half(each["step_seconds"]) for each in (ours, plain)]
    ratio = step_ms[0] / step_ms[1]
    if site.has_card:
        at_most(ratio, MAX_RATIO, "a step's time beside the plain script's")
    facts = {"step_ms": step_ms[0], "plain_step_ms": step_ms[1], "loss_difference": far}
    return Figure(ratio, "of the plain script's step", facts)


def in_second_half(seconds: list[float]) -> float:
    """The median of a training's later steps."""
    return statistics.median(seconds[len(seconds) // 2 :])


CHECKS = {"gpt2": Check(gpt2, "a step of GPT-2 beside the plain script's, on the card alone")}
