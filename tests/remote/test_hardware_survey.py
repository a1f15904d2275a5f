"""What all nodes are made of, asked at once; here of this machine under two names."""

import json

import pytest

from hetero_hvd.cli import main
from hetero_hvd.config import NodeConfig
from hetero_hvd.remote.hardware_survey import can_be_asked, survey_nodes
from hetero_hvd.remote.programs.hardware_program import look
from tests.fake_nvml.library import build, environment


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A nodes.yaml with this machine, one that is not there, and one of an agent; two GPUs."""
    library = environment(build(tmp_path))["LD_LIBRARY_PATH"]
    monkeypatch.setenv("LD_LIBRARY_PATH", library)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.yaml").write_text(
        "nodes:\n"
        "  - {name: here, devices: []}\n"
        "  - {name: gone, address: 127.0.0.1, port: 9, launcher: ssh, devices: []}\n"
        "  - {name: far, launcher: agent, identity_file: key}\n"
    )


@pytest.mark.process
@pytest.mark.usefixtures("nodes")
def test_all_nodes_are_shown_with_who_uses_their_gpus(capsys, monkeypatch):
    """One that cannot be asked costs the others nothing, and the exit code is 1."""
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["hardware", "-f", "nodes.yaml"]) == 1
    said = capsys.readouterr().out
    assert "Fake H100 80 GiB" in said
    assert "\nhere gpu 0: pid " in said
    assert "\nhere gpu 1: no process seen\n" in said
    assert "gone: cannot be asked: " in said
    assert "far: left out, it has launcher agent" in said
    assert main(["hardware", "-f", "nodes.yaml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    here, gone = found["nodes"]
    assert (here["node"], here["gpus"]["gpus"][0]["name"]) == ("here", "Fake H100")
    assert here["sample"]["devices"][0]["power_watts"] == 350.5
    assert here["sample"]["devices"][1]["energy_joules"] is None
    assert gone.keys() == {"node", "failure", "remedy"}
    assert found["left_out"] == ["far"]


MISTAKES = {
    "a path on many nodes": (["--path", "/"], "--path and --towards are for this machine"),
    "no time": (["--timeout", "1"], "--timeout: found 1, must be from 5 to 3600"),
}


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line(capsys, words, said):
    """Exit code 2."""
    assert main(["hardware", "-f", "nodes.yaml", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "limit_seconds", "problem"),
    [
        ({"PYTHONPATH": "/none", "PYTHONNOUSERSITE": "1"}, 30, "hetero_hvd does not run there"),
        ({}, 0.01, "does not answer in 0.01 s"),
    ],
    ids=["not installed", "hangs"],
)
def test_a_node_that_does_not_tell_says_why(
    tmp_path, monkeypatch, environment, limit_seconds, problem
):
    """In words, not a traceback."""
    monkeypatch.chdir(tmp_path)
    if environment:
        (tmp_path / "hetero_hvd.py").write_text("raise SystemError('is broken here')")
    with pytest.raises(OSError, match=problem):
        look(str(tmp_path), environment, limit_seconds)


def test_who_can_be_asked():
    """This machine, and who ssh reaches; of nobody nothing is told."""
    assert can_be_asked(NodeConfig(name="here"))
    assert survey_nodes([], timeout_seconds=5.0) == []
