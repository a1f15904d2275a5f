"""The Compose file of the demo: whole, and its commands train on three hosts of unequal speed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml

from hetero_hvd.cli import main
from hetero_hvd.deploy.compose import AGENTS, DRIVER
from hetero_hvd.deploy.kubernetes.options import USER_ID
from hetero_hvd.deploy.script import MAX_SCRIPT_BYTES

SCRIPT = Path(__file__).with_name("train.py")
IMAGE = ("--image", "hetero-hvd:0.1.0")
OURS = ("driver", *AGENTS)


def written(folder, *flags, command=()):
    """What the command writes, parsed."""
    dashes = ("--", *command) if command else ()
    assert main(["deploy", "compose", str(folder), *IMAGE, *flags, *dashes]) == 0
    return yaml.safe_load((folder / "compose.yaml").read_text())


def test_each_file_that_is_mounted_is_there(tmp_path):
    """Beside compose.yaml; keys are for their owner alone, who is nobody's root."""
    folder = tmp_path / "c"
    services = written(folder, "--script", str(SCRIPT))["services"]
    assert services.keys() == {*OURS, "prometheus", "grafana"}
    for service in services.values():
        for volume in service["volumes"]:
            assert (folder / volume.partition(":")[0]).exists(), volume
    owner = os.getuid() or USER_ID
    for name in ("cluster.key", "token"):
        found = (folder / "keys" / name).stat()
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_uid == owner
    for name in OURS:
        assert services[name]["user"].startswith(f"{owner}:")
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["init"]
        assert services[name]["tmpfs"] == ["/tmp:exec,mode=1777"]  # noqa: S108 - a container's
    assert [services[name]["cpus"] for name in AGENTS] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_containers_of_any_user_can_read_what_is_no_secret(umask, tmp_path):
    """Grafana runs as a user of its own; keys and runs stay closed, and so does the folder."""
    folder = tmp_path / "c"
    before = os.umask(umask)
    try:
        services = written(folder, "--script", str(SCRIPT))["services"]
    finally:
        os.umask(before)
    mounted = {v.partition(":")[0] for service in services.values() for v in service["volumes"]}
    found = [p for m in mounted for p in ((folder / m), *(folder / m).rglob("*"))]
    modes = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in found}
    open_modes = {m for p, m in modes.items() if p.parts[0] not in ("keys", "runs")}
    assert open_modes == {0o644, 0o755}
    assert {m for p, m in modes.items() if p.parts[0] in ("keys", "runs")} == {0o600, 0o700}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask


def test_prometheus_asks_the_driver_and_shows_its_token(tmp_path):
    """The files of `hetero-hvd stack`; what is published is published to this machine alone."""
    content = written(tmp_path / "c")
    prometheus = yaml.safe_load((tmp_path / "c" / "monitoring" / "prometheus.yml").read_text())
    (scrape,) = prometheus["scrape_configs"]
    assert scrape["http_sd_configs"][0]["url"] == f"http://{DRIVER}:8080/sd"
    shown = {"type": "Bearer", "credentials_file": "/keys/token"}
    assert scrape["authorization"] == scrape["http_sd_configs"][0]["authorization"] == shown
    ports = [port for service in content["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
    networks = [service.get("networks", {}).get("job") for service in content["services"].values()]
    addresses = [network["ipv4_address"] for network in networks if network]
    assert len(set(addresses)) == len(addresses) == 5


def test_keys_are_never_replaced(tmp_path):
    """Not even with --force: agents that run would hold the old ones."""
    written(tmp_path / "c")
    before = (tmp_path / "c" / "keys" / "cluster.key").read_text()
    written(tmp_path / "c", "--force")
    assert (tmp_path / "c" / "keys" / "cluster.key").read_text() == before


WRONG = {
    "an image": (["c", "--image", "A"], "--image: found 'A'"),
    "a script": (["c", *IMAGE, "--script", "none.py"], "--script none.py: cannot be read"),
    "a large script": (["c", *IMAGE, "--script", "large.py"], "--script large.py: larger than"),
    "a folder": (["full", *IMAGE], "full: is not empty"),
    "no folder": (["large.py", *IMAGE], "large.py: cannot be used"),
}


@pytest.mark.parametrize(("words", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_line(tmp_path, monkeypatch, capsys, words, expected):
    """Nothing is written then."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "large.py").write_text("#" * (MAX_SCRIPT_BYTES + 1))
    assert main(["deploy", "compose", *words]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"hetero-hvd: {expected}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not (tmp_path / "c").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
