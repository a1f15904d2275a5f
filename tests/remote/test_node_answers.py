"""Whatever one node answers to any of our programs is its own row; the others keep theirs."""

import inspect
import json
import platform
from importlib import import_module
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.config import NodeConfig
from hetero_hvd.messages import DeviceSample, NodeSampled, event_to_json
from hetero_hvd.remote import hardware_survey, installation, programs
from hetero_hvd.remote.bundle import make_bundle
from hetero_hvd.remote.node_answers import ANSWERS
from tests.remote.answers import LEFT_OUT, SHAPES, answer_with, parts_of

SMALL = make_bundle(["msgspec"], imports=["msgspec"])
PLACE = {
    "path": "/home/ann/env",
    "machine": platform.machine(),
    "libc": platform.libc_ver()[0],
    "fingerprint": "another",
    "packages": ["gone"],
    "free_bytes": 2**50,
    "is_foreign": False,
    "is_busy": False,
}
SAMPLE = json.loads(event_to_json(NodeSampled(devices=(DeviceSample(index=0, name="a"),))))
INVENTORY = {
    "processor": {"model": "x", "num_cpus": 2},
    "memory": {"total_bytes": 2**34},
    "interfaces": [{"name": "eth0", "is_up": True, "speed_bits_per_second": 10**9}],
    "gpus": {"gpus": [{"index": 0, "name": "a", "memory_bytes": None}], "problem": None},
}
GOOD = {
    "install": {"look": PLACE, "install": "/home/ann/env/bin/python"},
    "hardware": {"look": {"inventory": INVENTORY, "sample": SAMPLE}},
}
MODULES = {"install": installation, "hardware": hardware_survey}


def strange(answers):
    """Function, and what may come in the place of its answer."""
    for function, answer in answers.items():
        yield from ((function, shape) for shape in SHAPES)
        for path, put in parts_of(answer):
            if path[0] == "sample" and len(path) > 1:
                continue  # it has a reader of its own, which is tested there
            yield from ((function, put(shape)) for shape in (LEFT_OUT, *SHAPES))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs a command on a good node and one that answers something; exit code and rows."""
    (tmp_path / "nodes.yaml").write_text(
        "nodes:\n  - {name: good, address: 10.0.0.2}\n  - {name: strange, address: 10.0.0.3}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("hetero_hvd.remote.bundle.make_bundle", lambda _wanted: SMALL)
    monkeypatch.setattr(installation, "WAIT_SECONDS", -1.0)

    def run(name, **answers):
        told = {"good": GOOD[name], "strange": GOOD[name] | answers}
        answer_with(monkeypatch, MODULES[name], told)
        code = main([name, "-f", "nodes.yaml"])
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", MODULES)
def test_good_answers_are_rows(command, name):
    """So that those below are told apart."""
    code, said = command(name)
    assert code == 0
    assert "good" in said
    assert "strange" in said


@pytest.mark.parametrize("name", MODULES)
def test_a_strange_answer_costs_no_other_row(command, name):
    """Of the whole or any part: the command ends with all rows, and blames one node at most."""
    for function, answer in strange(GOOD[name]):
        code, said = command(name, **{function: answer})
        assert code in (0, 1)
        assert "good" in said
        assert "strange" in said
    code, said = command(name, look=None)
    assert code == 1
    assert "its answers are not those of hetero_hvd" in said


def test_every_function_of_every_program_has_its_answer():
    """One that is added cannot be asked without."""
    folder = Path(programs.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert names == ANSWERS.keys()
    for name in names:
        module = import_module(f"{programs.__name__}.{name}")
        own = {n for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"}
        assert own >= ANSWERS[name].keys()


@pytest.mark.parametrize("launcher", ["hardware", "install"])
def test_the_rows_are_those_of_the_nodes(launcher, monkeypatch):
    """Without the command around them, too."""
    answer_with(monkeypatch, MODULES[launcher], {"look": None, "install": None})
    nodes = [NodeConfig(name=name, address="10.0.0.2") for name in ("a", "b")]
    if launcher == "install":
        found = installation.install_all(nodes, SMALL, lambda _: None, is_forced=True)
    else:
        found = hardware_survey.survey_nodes(nodes, timeout_seconds=5.0)
    assert [one.node for one in found] == ["a", "b"]
