"""What a destination holds, by that destination's own reader: path to newest value."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import struct
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from .servers import PASSWORD


def from_csv(place):
    """By Python's csv."""
    with Path(place).open(newline="") as file:
        return {row["name"]: float(row["value"]) for row in csv.DictReader(file)}


def from_json(place):
    """By Python's json; the summary counts what the frames have."""
    content = json.loads(Path(place).read_text())
    found, counts = {}, Counter()
    for frame in content["frames"]:
        told = {path: value for path, value in frame["values"].items() if value is not None}
        found |= told
        counts.update(told.keys())
    assert {path: each["count"] for path, each in content["summary"].items()} == counts
    return found


def from_parquet(place):
    """By pyarrow."""
    rows = pytest.importorskip("pyarrow.parquet").read_table(place).to_pylist()
    return {row["name"]: row["value"] for row in rows}


def from_tensorboard(place):
    """By TensorBoard's event accumulator."""
    name = "tensorboard.backend.event_processing"
    accumulators = pytest.importorskip(f"{name}.plugin_event_accumulator")
    found = accumulators.EventAccumulator(str(place))
    found.Reload()
    array = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    tags = found.Tags()["tensors"]
    return {tag: array(found.Tensors(tag)[-1].tensor_proto).item() for tag in tags}


PATHS = {
    ("loss",): "run/loss",
    ("progress_ratio",): "run/progress_ratio",
    ("learning_rate", "group"): "run/learning_rate",
    ("evaluation", "metric"): "evaluation/{}",
    ("logged", "name"): "logged/{}",
}


def path_of(family, labels):
    """The path of a sample, by its family and labels."""
    for (known, *names), path in PATHS.items():
        if known == family:
            return path.format(*(labels[name] for name in names))
    return family


def from_openmetrics(place):
    """By Prometheus: its own tool makes blocks of a database from it, and dumps them."""
    if shutil.which("promtool") is None:
        pytest.skip("apt install prometheus")
    blocks = Path(place).with_name("data")  # newer ones dump what is beside a folder of this name
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", place, blocks]
    subprocess.run(command, check=True, capture_output=True)
    (blocks / "wal").mkdir()  # a database has one
    dumped = subprocess.run(
        ["promtool", "tsdb", "dump", "data"],
        cwd=blocks.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    found = {}
    for line in dumped.stdout.splitlines():
        labels, value, _ = re.fullmatch(r"\{(.*)\} (\S+) (\d+)", line).groups()
        pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        named = {key: re.sub(r"\\(.)", r"\1", text) for key, text in pairs.items()}
        found[path_of(named["__name__"].removeprefix("hetero_hvd_"), named)] = float(value)
    return found


def parsed_line(line):
    """Measurement, tags, fields and time of a line of InfluxDB's protocol."""
    head, fields, at = re.fullmatch(r"((?:[^ \\]|\\.)+) ((?:[^ \\]|\\.)+) (\d+)", line).groups()
    name, *tags = re.split(r"(?<!\\),", head)
    pairs = (re.split(r"(?<!\\)=", tag) for tag in tags)
    named = {key: re.sub(r"\\([,= ])", r"\1", text) for key, text in pairs}
    return name, named, dict(field.split("=") for field in fields.split(",")), int(at)


def from_influx_text(text):
    """By a parser of the line protocol."""
    found = {}
    for name, tags, fields, _ in map(parsed_line, text.splitlines()):
        found[path_of(name.removeprefix("hetero_hvd_"), tags)] = float(fields["value"])
    return found


def from_influx(place):
    """Of a file."""
    return from_influx_text(Path(place).read_text())


BLOCK_BYTES, CHUNK_HEADER, WANDB_HEADER = 32768, struct.Struct("<IHB"), 7
FULL, LAST = 1, 4
WANDB_SECONDS = 30.0


def framed(data):
    """The records of a file in LevelDB's log format, in which wandb keeps a run on disk."""
    at, whole = WANDB_HEADER, b""
    while at + CHUNK_HEADER.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < CHUNK_HEADER.size:
            at += left
            continue
        _, length, kind = CHUNK_HEADER.unpack_from(data, at)
        at += CHUNK_HEADER.size
        if at + length > len(data):
            return  # the rest is not written yet
        whole += data[at : at + length]
        at += length
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def from_wandb(_place):
    """By wandb's own messages; its reader of that file is no part of the Python package.

    Without a server `finish` returns a moment before wandb has written all of the run to the file,
    whose last record says that it has ended.
    """
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (file,) = Path.cwd().glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + WANDB_SECONDS
    while True:
        found, kinds = {}, set()
        for data in framed(file.read_bytes()):
            record = records.Record()
            record.ParseFromString(data)
            kinds.add(record.WhichOneof("record_type"))
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                found[name] = float(item.value_json.strip('"'))
        if "exit" in kinds:
            return found
        assert time.monotonic() < deadline, f"wandb did not end the run: {sorted(kinds)}"
        time.sleep(0.02)


def from_mlflow(_place):
    """By mlflow's client, from its store of files."""
    client = pytest.importorskip("mlflow").MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'hetero_hvd'")
    (run,) = client.search_runs([experiment.experiment_id])
    return run.data.metrics


def from_postgresql(url):
    """By psycopg."""
    psycopg = pytest.importorskip("psycopg")
    asked = "SELECT name, value FROM hetero_hvd_samples ORDER BY at, step"
    with psycopg.connect(url, password=PASSWORD) as connection:
        return dict(connection.execute(asked).fetchall())


def from_redis(url):
    """By redis."""
    client = pytest.importorskip("redis").Redis.from_url(
        url, password=PASSWORD, decode_responses=True
    )
    run = client.get("hetero_hvd:newest")
    found = client.hgetall(f"hetero_hvd:run:{run}")
    client.close()
    assert os.environ["REDISCLI_AUTH"] == PASSWORD
    return {name: float(value) for name, value in found.items() if name not in ("state", "name")}
