"""A run of MLflow."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import library, place

EXPERIMENT = "hetero_hvd"
MAX_BATCH = 1000
"""Metrics in one request, by MLflow's own rule."""

_UNNAMEABLE = re.compile(r"[^\w\-. /]")


class MlflowRun:
    """`mlflow:EXPERIMENT`, or `mlflow:`; goes where `MLFLOW_TRACKING_URI` says."""

    resumes = False

    def __init__(self, url: str) -> None:
        self._experiment = place(url) or EXPERIMENT
        self._mlflow = library("mlflow", "mlflow")
        self._entities = library("mlflow.entities", "mlflow")

    def begin(self, run: RunStarted) -> None:
        """Start the run; its tags are MLflow's."""
        self._client = self._mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        tags = {"run_id": run.run_id, "command": " ".join(run.command), **run.tags}
        name = run.name or run.run_id
        self._run_id = self._client.create_run(number, tags=tags, run_name=name).info.run_id

    def write(self, samples: Sequence[Sample]) -> None:
        """Log them, some at a time."""
        metrics = [
            self._entities.Metric(
                _UNNAMEABLE.sub(".", one.path), one.value, int(one.at_unix_seconds * 1e3), one.step
            )
            for one in samples
        ]
        for start in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MAX_BATCH])

    def end(self, state: str) -> None:
        """End the run."""
        self._client.set_tag(self._run_id, "state", state)
        self._client.set_terminated(self._run_id)
