"""Prometheus finds each run that has a page, and no other."""

import json
import os
import re
from platform import node

import pytest

from hetero_hvd.monitoring.files import WatchedPlaces, stack_files
from hetero_hvd.run.records.run_files import lock_folder
from hetero_hvd.run.web.scraping.targets import (
    TargetFile,
    own_target,
    run_name,
    run_target,
    service_discovery,
)

EXPORTERS = {"alpha": "https://a:1", "beta": "http://b:1"}
OWN = run_target("http://d:2", "out-1a2b3c4d")


def test_discovery_follows_the_membership():
    """The driver is always a target, a node's exporter while the node has a worker."""
    status = {"workers": {"alpha:0": {}}, "node_exporters": EXPORTERS}
    assert service_discovery(status, OWN) == [
        {"targets": ["d:2"], "labels": {"run": "out", "__scheme__": "http"}},
        {"targets": ["a:1"], "labels": {"node": "alpha", "__scheme__": "https"}},
    ]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("0.0.0.0", node()),  # noqa: S104 - nothing listens
        ("[::]", node()),
        ("127.0.0.1", "127.0.0.1"),
        ("[fd00::2]", "[fd00::2]"),
    ],
)
def test_a_driver_that_listens_on_all_addresses_tells_its_machines_name(address, told):
    """To Prometheus the address would be its own machine."""
    (target,) = own_target(f"http://{address}:80", "out-1a2b3c4d")["targets"]
    assert target == f"{told}:80"


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("out-1a2b3c4d", "out"),
        ("a-b-1a2b3c4d", "a-b"),
        ("of another version", "of another version"),
    ],
)
def test_a_run_keeps_its_name(run_id, name):
    """That of its folder, whichever start of it."""
    assert run_name(run_id) == name


def found(runs):
    """Run to address, of what Prometheus reads."""
    config = json.loads(stack_files(WatchedPlaces(runs=str(runs)))["prometheus.yml"])
    (pattern,) = config["scrape_configs"][0]["file_sd_configs"][0]["files"]
    assert re.fullmatch(r"[^*]*(\*[^/]*)?\.json", pattern)  # Prometheus takes no other one
    told = [json.loads(file.read_text()) for file in runs.glob(pattern.removeprefix(f"{runs}/"))]
    return {one["labels"]["run"]: one["targets"][0] for targets in told for one in targets}


@pytest.mark.parametrize("name", ["one", "a b", "2026-11-28T04-10-01Z", "ü{}.targets.json"])
def test_runs_come_and_go(tmp_path, name):
    """One whose driver was killed goes when the next comes; one that lives stays."""
    held = {}
    for run in (name, "killed", "next"):
        (tmp_path / run).mkdir()
        held[run] = lock_folder(tmp_path / run)
    files = {run: TargetFile(tmp_path / run) for run in held}
    for run in (name, "killed"):
        files[run].write([run_target(f"http://{len(run)}:1", f"{run}-1a2b3c4d")])
    assert found(tmp_path) == {name: f"{len(name)}:1", "killed": "6:1"}
    os.close(held["killed"])
    files["next"].write([run_target("http://n:1", "next-1a2b3c4d")])
    assert found(tmp_path) == {name: f"{len(name)}:1", "next": "n:1"}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob(".*.json")} == {0o644}
    files[name].remove()
    files["next"].remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(held)


def test_where_nothing_can_be_written_nothing_is_told(tmp_path):
    """The run goes on."""
    file = TargetFile(tmp_path / "gone" / "run")
    file.write([OWN])
    file.remove()
    assert not list(tmp_path.iterdir())


def test_what_another_user_has_left_stays(tmp_path, monkeypatch):
    """His folders cannot be looked into; ours is told all the same."""
    (tmp_path / "his").mkdir()
    TargetFile(tmp_path / "his").write([OWN])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    (tmp_path / "ours").mkdir()
    TargetFile(tmp_path / "ours").write([run_target("http://d:3", "ours-1a2b3c4d")])
    assert found(tmp_path) == {"out": "d:2", "ours": "d:3"}
