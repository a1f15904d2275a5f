"""What `hetero-hvd stack` writes, judged by promtool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hetero_hvd.cli import main
from hetero_hvd.deploy.folder import MARK, is_ours
from hetero_hvd.monitoring.alertmanager import CAUSES_OF_ALERTS, RECEIVER

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt install prometheus"
)


def promtool(*words, folder):
    """What promtool says; it must be content."""
    done = subprocess.run(
        ["promtool", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_folder_is_complete_and_valid(tmp_path, capsys):
    """Prometheus takes the configuration; the token is named, and not copied."""
    token = tmp_path / "token"
    token.write_text("a secret")
    flags = ["--driver", "http://127.0.0.1:9500", "--token-file", str(token)]
    flags += ["--hub", "https://127.0.0.1:9392/", "--runs", str(tmp_path / "runs")]
    assert main(["stack", str(tmp_path / "s"), *flags]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert len(files) == 10
    assert not any("a secret" in file.read_text() for file in files)
    promtool("check", "config", "prometheus.yml", folder=tmp_path / "s")
    uids = {json.loads(f.read_text())["uid"] for f in files if f.suffix == ".json"}
    assert uids == {f"hetero-hvd-{name}" for name in ("cluster", "run", "worker", "collectives")}


WRONG = {
    "nowhere": ([], "nothing to watch: say where runs are, by --runs DIR, --hub URL or"),
    "a driver without a port": (["--driver", "localhost"], "must be http[s]://HOST:PORT"),
    "a hub without a port": (["--hub", "http://localhost"], "must be http[s]://HOST:PORT"),
    "a driver with a password": (
        ["--driver", "http://u:p@127.0.0.1:9500"],
        "--driver: must be http[s]://HOST:PORT, without name and password",
    ),
    "a folder that is a pattern": (["--runs", "runs*"], "must be without *, which are a pattern"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_watched_is_refused(tmp_path, capsys, case):
    """One line, exit code 2, nothing written."""
    flags, words = WRONG[case]
    assert main(["stack", str(tmp_path / "s"), *flags]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "s").exists()


THEIRS = {
    "another program's": "global: {}\n",
    "one that speaks of us": "# hetero_hvd and others\nglobal: {}\n",
    "one that quotes the mark far behind": f"{400 * 'x'}\n# {MARK}\n",
    "an empty one": "",
}


@pytest.mark.parametrize(
    "name",
    [
        "prometheus.yml",
        "rules.yml",
        "grafana/dashboards/run.json",
        "grafana/provisioning/datasources/hetero_hvd.yml",
    ],
)
@pytest.mark.parametrize("kind", THEIRS)
def test_a_file_of_somebody_else_is_not_written_over(tmp_path, capsys, kind, name):
    """Nothing is written then; what is ours is written anew, and what lies beside it stays."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(THEIRS[kind])
    (tmp_path / "data").mkdir()
    words = ["stack", str(tmp_path), "--driver", "http://127.0.0.1:9500"]
    assert main(words) == 2
    assert f"holds {name}, which hetero-hvd deploy has not written" in capsys.readouterr().err
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert path.read_text() == THEIRS[kind]
    assert [main([*words, "--force"]), main(words)] == [0, 0]
    written = list(map(Path, capsys.readouterr().out.splitlines()))
    assert all(map(is_ours, written))
    assert path in written
    assert (tmp_path / "data").is_dir()


def test_each_alert_fires_when_it_should_and_not_before(tmp_path):
    """Every alert has a case in rules_test.yml in which it is silent, and one in which it fires."""
    assert main(["stack", str(tmp_path), "--driver", "http://127.0.0.1:9500"]) == 0
    cases = Path(__file__).with_name("rules_test.yml").read_text()
    (tmp_path / "rules_test.yml").write_text(cases)
    promtool("test", "rules", "rules_test.yml", folder=tmp_path)
    rules = (tmp_path / "rules.yml").read_text()
    alerts = [line.split()[-1] for line in rules.splitlines() if "alert:" in line]
    assert len(alerts) == 16
    assert all(f"alertname: {alert}\n" in cases for alert in alerts)
    assert all(f"alertname: {alert}}}" in cases for alert in alerts)


@pytest.mark.skipif(
    shutil.which("amtool") is None, reason="no amtool: apt install prometheus-alertmanager"
)
@pytest.mark.parametrize("flags", [(), ("--alerts-to", "http://127.0.0.1:8080/alerts")])
def test_alertmanager_takes_its_file_and_knows_the_way(tmp_path, flags):
    """Also without a receiver outside."""
    assert main(["stack", str(tmp_path), "--driver", "http://127.0.0.1:9500", *flags]) == 0
    amtool("check-config", "alertmanager.yml", folder=tmp_path)
    routes = ("config", "routes", "test", "--config.file=alertmanager.yml")
    for severity in ("warning", "critical"):
        told = amtool(*routes, f"severity={severity}", "alertname=HeteroHvdHot", folder=tmp_path)
        assert told.strip() == RECEIVER


def amtool(*words, folder):
    """What amtool says; it must be content."""
    done = subprocess.run(
        ["amtool", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_follows_from_an_alert_names_alerts_that_there_are(tmp_path):
    """And the receiver is what was given."""
    flags = ("--driver", "http://127.0.0.1:9500", "--alerts-to", "https://gateway/alerts")
    assert main(["stack", str(tmp_path), *flags]) == 0
    written = yaml.safe_load((tmp_path / "alertmanager.yml").read_text())
    assert written["receivers"][0]["webhook_configs"][0]["url"] == "https://gateway/alerts"
    rules = (tmp_path / "rules.yml").read_text()
    named = re.findall(r"HeteroHvd\w+", str(written["inhibit_rules"]))
    assert {f"alert: {name}" in rules for name in named} == {True}
    assert set(named) >= CAUSES_OF_ALERTS.keys()


@pytest.mark.parametrize(
    "url", ["gateway", "ftp://gateway", "https://a:s3cret@gateway", "https://gateway/?key=s3cret"]
)
def test_a_receiver_with_a_secret_is_refused(tmp_path, capsys, url):
    """A command line is there for all to see; nothing is written."""
    flags = ("--driver", "http://127.0.0.1:9500", "--alerts-to", url)
    assert main(["stack", str(tmp_path / "s"), *flags]) == 2
    said = capsys.readouterr().err
    assert "--alerts-to: must be http[s]://HOST[:PORT][/PATH] without password or token" in said
    assert "s3cret" not in said
    assert not (tmp_path / "s").exists()
