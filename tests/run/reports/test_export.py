"""A run's records in the formats of other programs, read back by those programs."""

from __future__ import annotations

import builtins
import csv
import shutil
import subprocess

import pytest

from hetero_hvd.cli import main

from .test_series import recorded_run  # noqa: F401 - a fixture


def test_csv_and_parquet_hold_the_same_table(run, tmp_path):
    """Parquet, where pyarrow is there, has the same rows and columns, with types."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["export", str(run), "--output", str(tmp_path / "run.csv")]) == 0
    path = tmp_path / "run.parquet"
    assert main(["export", str(run), "--format", "parquet", "--output", str(path)]) == 0
    rows = parquet.read_table(path).to_pylist()
    with (tmp_path / "run.csv").open() as file:
        texts = list(csv.DictReader(file))
    assert len(rows) == 4
    assert [row["worker"] for row in rows] == [row["worker"] for row in texts]
    assert [row["step_seconds"] for row in rows] == [float(row["step_seconds"]) for row in texts]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="apt install prometheus")
def test_openmetrics_is_taken_by_prometheus(run, tmp_path):
    """Prometheus' own tool makes blocks of a database from it, with the times of the run."""
    text = tmp_path / "run.txt"
    command = ["export", str(run), "--format", "openmetrics", "--output", str(text)]
    assert main(command) == 0
    lines = text.read_text().splitlines()
    assert 'hetero_hvd_worker_local_batch_size{run_id="demo",worker="beta:0"} 4 2.000' in lines
    assert lines[-1] == "# EOF"
    blocks = tmp_path / "blocks"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, blocks], check=True
    )
    listed = subprocess.run(
        ["promtool", "tsdb", "list", blocks], check=True, capture_output=True, text=True
    ).stdout
    samples = sum(not line.startswith("#") for line in lines)
    assert sum(int(line.split()[4]) for line in listed.splitlines()[1:]) == samples > 10_000


def test_tensorboard_reads_the_scalars(run, tmp_path):
    """Every step with its time."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    folder = tmp_path / "board"
    command = ["export", str(run), "--format", "tensorboard", "--output", str(folder)]
    assert main(command) == 0
    (file,) = folder.iterdir()
    assert len(list(loader.RawEventFileLoader(str(file)).Load())) == 1 + 1199  # and a version


@pytest.mark.parametrize("kind", ["parquet", "tensorboard", "wandb", "mlflow"])
def test_a_missing_extra_is_named(run, tmp_path, capsys, monkeypatch, kind):
    """One line that says what to install."""
    imported = builtins.__import__

    def without_extras(name, *rest, **more):
        if name.partition(".")[0] in ("pyarrow", "tensorboard", "wandb", "mlflow"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_extras)
    assert main(["export", str(run), "--format", kind, "--output", str(tmp_path / "x")]) == 2
    assert f"pip install 'hetero_hvd[{kind}]'" in capsys.readouterr().err


def test_a_file_needs_a_place(run, capsys):
    """Parquet is not written to a terminal."""
    assert main(["export", str(run), "--format", "parquet"]) == 2
    assert "needs --output" in capsys.readouterr().err
