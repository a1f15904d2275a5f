"""What a user has given to a job in confidence is in no file, page or export of it."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from hetero_hvd.cli import main

LEAKY = Path(__file__).with_name("leaky.py")
SECRETS = {
    name: f"planted-{name}-7f3a"
    for name in ("argument", "option", "url", "header", "tag", "name", "variable", "node", "query")
}
NODES = f"""
nodes:
  - name: alpha
    slots: 1
    devices: []
    price_per_hour: 1.5
    env: {{HF_TOKEN: {SECRETS["variable"]}, AWS_SECRET_ACCESS_KEY: {SECRETS["node"]}}}
"""


def everything_in(folder):
    """All files but the workers' own output."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("alpha-0.log", "nodes.yaml")
    }


def leaks_of(content):
    """Which secrets are in it."""
    data = content if isinstance(content, bytes) else content.encode()
    return [name for name, secret in SECRETS.items() if secret.encode() in data]


@pytest.mark.process
def test_planted_secrets_are_found_nowhere(start_job, tmp_path, capsys):
    """Not in a file, on a page, in an export; the script's own output is its own."""
    command = (
        str(LEAKY),
        *("--password", SECRETS["argument"]),
        f"--api-key={SECRETS['option']}",
        f"--data=s3://user:{SECRETS['url']}@bucket/x",
        *("-H", f"Authorization: Bearer {SECRETS['header']}"),
        f"https://host/x?token={SECRETS['query']}&part=1",
    )
    labels = ("--tag", f"wandb_token={SECRETS['tag']}", "--name", f"secret={SECRETS['name']}")
    (tmp_path / "other.yaml").write_text(NODES)
    job = start_job("-f", "other.yaml", *labels, command=command)
    job.wait_for("the script prints")
    (tmp_path / "other.yaml").unlink()
    base = job._url.removesuffix("/status")
    for page in ("/", "/status", "/state", "/metrics", "/sd"):
        with urllib.request.urlopen(base + page, timeout=5) as answer:  # noqa: S310 - our own
            assert leaks_of(answer.read()) == [], page
    (tmp_path / "looked").touch()
    assert job.wait() == 1
    run = tmp_path / "out"
    files = everything_in(run)
    names = {path.name for path in files}
    assert {"run.sqlite", "timings.jsonl", "summary.json", "report.html", "driver.log"} <= names
    assert {
        str(path): leaks_of(content) for path, content in files.items() if leaks_of(content)
    } == {}
    assert b"(hidden)" in files[run / "run.sqlite"] + files.get(run / "run.sqlite-wal", b"")
    assert SECRETS["variable"] in (run / "logs" / "alpha-0.log").read_text()
    costs = job.summary()["costs"]
    assert costs["cost"] == pytest.approx(1.5 * costs["node_hours"])
    assert (costs["cost"] > 0.0, costs["unpriced"], costs["steps"]) == (True, [], 16)
    for words in (
        *(["report", str(run)], ["report", str(run), "--json"], ["runs", str(tmp_path), "--json"]),
        *(["runs", str(tmp_path)], ["compare", str(run), str(run)], ["cost", str(run), "--json"]),
        ["export", str(run)],
    ):
        assert main(words) == 0
        said = capsys.readouterr()
        assert said.out
        assert leaks_of(said.out + said.err) == [], words
    for kind in ("openmetrics", "influx"):
        assert main(["export", str(run), "--to", f"{kind}:{tmp_path / kind}"]) == 0
        assert leaks_of((tmp_path / kind).read_bytes()) == [], kind
