"""A path in the home of a user that is not there is one line, wherever it stands."""

import sys

import pytest

from hetero_hvd.agent import client as dial
from hetero_hvd.cli import main
from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.errors import UserError
from hetero_hvd.security.cluster_key import make_key

HOME = "~no-such-user/x"
WHY = f"{HOME}: this machine knows no home of that user; give a whole path"
FILES = {
    "a: directory": ("job: {}", f"{{name: a, directory: {HOME}}}"),
    "job.cluster_key_file": (f"job: {{discover: true, cluster_key_file: {HOME}}}", "{name: a}"),
}


@pytest.mark.parametrize("setting", FILES)
def test_in_nodes_yaml_before_anything_is_started(tmp_path, monkeypatch, capsys, setting):
    """Exit code 2, and which setting it is."""
    job, node = FILES[setting]
    (tmp_path / "nodes.yaml").write_text(f"{job}\nnodes: [{node}]\n")
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--output", "out", "--", "train.py"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"hetero-hvd: {setting}: {WHY}"]


def test_for_ssh_when_it_is_called():
    """The start of the worker fails with that line."""
    node = NodeConfig(name="a", launcher="ssh", identity_file=HOME)
    with pytest.raises(UserError) as error:
        launcher_of(node).command(node, (), "")
    assert str(error.value) == f"a: identity_file: {WHY}"


@pytest.mark.parametrize("setting", ["identity_file", "tls_file"])
def test_for_an_agent_when_it_is_called(tmp_path, monkeypatch, capsys, setting):
    """The process that would call it says so, with the code of a connection that fails."""
    make_key(tmp_path / "key")
    key = HOME if setting == "identity_file" else str(tmp_path / "key")
    words = ["dial", "127.0.0.1", "9", key, *(["--tls", HOME, "a"] if key != HOME else [])]
    monkeypatch.setattr(sys, "argv", words)
    assert dial.main() == dial.EXIT_NO_CONNECTION
    assert capsys.readouterr().err == f"agent at 127.0.0.1 port 9: {setting}: {WHY}\n"
