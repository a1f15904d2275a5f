"""A run's series for programs that track experiments; each is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.errors import JobError
from hetero_hvd.run.reports.export import ALL_POINTS, EXTRA, scalars
from hetero_hvd.run.reports.series import Series, series_of

PROJECT = "hetero_hvd"


def to_tensorboard(run: Path, folder: Path) -> None:
    """Write an event file of scalars.

    Args:
        run: Output folder of the run.
        folder: For `tensorboard --logdir`.

    Raises:
        JobError: No run is recorded there, or TensorBoard is missing.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415
    except ImportError as error:
        raise JobError(EXTRA.format(package="tensorboard", extra="tensorboard")) from error
    series = series_of(run, max_points=ALL_POINTS)
    try:
        writer = EventFileWriter(str(folder))
    except OSError as error:
        raise JobError(f"{folder}: {error}") from error
    for step, at_unix_seconds, values in _points(series):
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        writer.add_event(Event(wall_time=at_unix_seconds, step=step, summary=summary))
    writer.close()


def to_wandb(run: Path) -> None:
    """Log a run to Weights & Biases, as its own environment variables say (`WANDB_MODE` ...).

    Raises:
        JobError: No run is recorded there, or wandb is missing or refuses.
    """
    try:
        import wandb  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise JobError(EXTRA.format(package="wandb", extra="wandb")) from error
    series = series_of(run, max_points=ALL_POINTS)
    notes = "\n".join(series.verdict)
    try:
        with wandb.init(project=PROJECT, name=series.run_id, notes=notes) as target:
            for step, _, values in _points(series):
                target.log(values, step=step)
    except wandb.Error as error:
        raise JobError(f"wandb: {error}") from error


def to_mlflow(run: Path) -> None:
    """Log a run to MLflow, as its own environment variables say (`MLFLOW_TRACKING_URI` ...).

    Raises:
        JobError: No run is recorded there, or mlflow is missing or refuses.
    """
    try:
        import mlflow  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise JobError(EXTRA.format(package="mlflow", extra="mlflow")) from error
    series = series_of(run, max_points=ALL_POINTS)
    try:
        mlflow.set_experiment(PROJECT)
        with mlflow.start_run(run_name=series.run_id, description="\n".join(series.verdict)):
            for step, _, values in _points(series):  # it allows no colon in a name
                metrics = {name.replace(":", "."): value for name, value in values.items()}
                mlflow.log_metrics(metrics, step=step)
    except mlflow.exceptions.MlflowException as error:
        raise JobError(f"mlflow: {error}") from error


def _points(series: Series) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Step, time and what was measured then."""
    lines = list(scalars(series))
    for index, (step, at) in enumerate(zip(series.steps, series.at_unix_seconds, strict=True)):
        found = ((name, values[index]) for name, values in lines)
        yield step, at, {name: value for name, value in found if value is not None}
