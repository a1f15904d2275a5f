"""A run of Weights & Biases, online or kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import library, place

PROJECT = "hetero_hvd"


class WandbRun:
    """`wandb:PROJECT`, or `wandb:`; goes where wandb's own variables say, such as `WANDB_MODE`."""

    resumes = False

    def __init__(self, url: str) -> None:
        self._project = place(url) or PROJECT
        self._wandb = library("wandb", "wandb")

    def begin(self, run: RunStarted) -> None:
        """Start the run; what was tried is its configuration."""
        config = {"tags": run.tags, "settings": run.settings, "origin": run.origin}
        self._run = self._wandb.init(
            project=self._project,
            name=run.name or run.run_id,
            config=config | {"run_id": run.run_id, "command": " ".join(run.command)},
            reinit="create_new",
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")  # its own steps may not go back

    def write(self, samples: Sequence[Sample]) -> None:
        """Log those of a step together."""
        for step, found in groupby(samples, key=attrgetter("step")):
            self._run.log({"step": step} | {one.path: one.value for one in found})

    def end(self, state: str) -> None:
        """End the run."""
        self._run.summary["state"] = state
        self._run.finish()
