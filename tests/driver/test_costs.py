"""What a real job cost: nodes that leave, come late and have no price."""

from __future__ import annotations

import json

import pytest

from hetero_hvd.cli import main

pytestmark = pytest.mark.process


def write_priced(path, prices):
    """A nodes.yaml with a local CPU slot for each name; None: without a price."""
    nodes = [
        {"name": name, "slots": 1, "devices": []}
        | ({"price_per_hour": price} if price is not None else {})
        for name, price in prices.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"nodes": nodes}))
    fresh.replace(path)


def test_nodes_are_paid_for_while_they_are_there(start_job, tmp_path, capsys):
    """One comes late, one leaves; the record knows their prices when the file is gone."""
    nodes = tmp_path / "priced.yaml"
    write_priced(nodes, {"alpha": 3600.0, "beta": 1800.0})
    job = start_job("-f", str(nodes), script=("80",))
    job.wait_for("2 workers train together: alpha:0, beta:0")
    write_priced(nodes, {"alpha": 3600.0, "beta": 1800.0, "gamma": None})
    job.wait_for("3 workers train together: alpha:0, beta:0, gamma:0")
    write_priced(nodes, {"alpha": 3600.0, "gamma": None})
    job.wait_for("2 workers train together: alpha:0, gamma:0")
    nodes.unlink()
    assert job.wait() == 0
    costs = job.summary()["costs"]
    found = {node["node"]: node for node in costs["nodes"]}
    seconds = {name: node["hours"] * 3600 for name, node in found.items()}
    assert seconds["alpha"] > seconds["beta"] > 0.0
    assert seconds["alpha"] > seconds["gamma"] > 0.0
    assert costs["unpriced"] == ["gamma"]
    assert costs["cost"] == pytest.approx(seconds["alpha"] + 0.5 * seconds["beta"])
    assert costs["samples"] == 80 * 512
    epochs = [epoch["epoch"] for epoch in costs["epochs"]]
    assert epochs == list(range(len(epochs)))
    assert len(epochs) > 20
    in_epochs = sum(epoch["cost"] for epoch in costs["epochs"])
    assert 0.0 < in_epochs < costs["cost"]
    capsys.readouterr()
    assert main(["cost", str(tmp_path / "out"), "--to", "loss < 1e9", "--without", "alpha"]) == 0
    said = capsys.readouterr().out
    assert "no price_per_hour: gamma" in said
    assert "without alpha: cannot be told: gamma: no price_per_hour" in said
