"""What looking at a node says where the user who logs in may not look: the row keeps the rest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.remote.examination import NodeFacts
from hetero_hvd.remote.node_answers import checked
from hetero_hvd.remote.node_findings import Reference, report_on
from hetero_hvd.remote.programs import examination_program, hardware_program

CALL = """
import json, os, sys, types
said, order = sys.argv[1], json.loads(sys.argv[2])
program = {"__name__": "program"}
exec(sys.stdin.read(), program)
answered = types.SimpleNamespace(stdout=said, stderr="", returncode=0)
program["subprocess"].run = lambda vector, **_: print(json.dumps(vector[-1])) or answered
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps(program["look"](**order)))
"""
"""Becomes a user who owns nothing; what runs in processes of its own there says what it is told."""


def look_as_nobody(program, said, **order):
    """What was asked of another process, and what a program answers."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, said, json.dumps(order)],
        input=Path(program.__file__).read_text(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return map(json.loads, done.stdout.splitlines())


@pytest.fixture
def places(tmp_path):
    """Folders in which no job can run, each for a reason of its own."""
    locked = tmp_path / "locked"
    (locked / "project").mkdir(parents=True)
    (locked / "project" / "train.py").touch()
    (tmp_path / "file").touch()
    locked.chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:3]):  # pytest's are for one user only
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):  # noqa: S108
            folder.chmod(folder.stat().st_mode | 0o055)
    yield {
        "a folder of another user": (locked, "Permission denied"),
        "within one": (locked / "project", "Permission denied"),
        "not there": (tmp_path / "none", "No such file or directory"),
        "a file": (tmp_path / "file", "Not a directory"),
        "below a file": (tmp_path / "file" / "x", "Not a directory"),
        "too long a name": (tmp_path / ("x" * 300), "File name too long"),
        "home of a user who is not there": ("~nobody-of-that-name/x", "No such file or directory"),
    }
    locked.chmod(0o700)


PLACES = (
    "a folder of another user",
    "within one",
    "not there",
    "a file",
    "below a file",
    "too long a name",
    "home of a user who is not there",
)


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_cannot_be_looked_at_costs_its_own_cell(places, name):
    """Disk, interpreter and software are told all the same, and the row says what is wrong."""
    place, why = places[name]
    _, seen = look_as_nobody(
        examination_program,
        json.dumps({"versions": {}, "package": str(places["within one"][0])}),
        directory=str(place),
        script="train.py",
        paths=["data", "/root/data", "x" * 300],
        environment={},
        limit_seconds=9.0,
    )
    checked("examination_program", "look", seen)
    assert (seen["directory"], seen["script"], seen["digest"]) == (False, None, None)
    assert seen["directory_error"] == why
    assert len(seen["missing"]) == 3
    assert seen["disk_bytes"] is not None
    facts = NodeFacts(node=NodeConfig(name="far", address="10.0.0.2", user="ann"), seen=seen)
    facts.seen["interpreter"] = "python3"
    reference = Reference(versions={}, digest=None, script=None, directory=str(place))
    (problem, *_) = (p for p in report_on(facts, reference).problems if "folder" in p.what)
    is_there = why != "No such file or directory"
    assert problem.what.endswith(f"cannot be looked at: {why}") is is_there
    assert ("let ann in there" in problem.remedy) is is_there
    assert "say directory in nodes.yaml" in problem.remedy


@pytest.mark.parametrize("name", PLACES)
def test_the_hardware_is_told_from_any_place(places, name):
    """It is not about the folder: where that will not do, the root's storage is told of."""
    order = {"directory": str(places[name][0]), "environment": {}, "limit_seconds": 9.0}
    folder, answer = look_as_nobody(hardware_program, '{"a": 1}', **order)
    assert (folder, answer) == ("/", {"a": 1})


@pytest.mark.parametrize("said", ["", "\n", "warning: a word"])
def test_hardware_without_an_answer_is_one_line(monkeypatch, said):
    """Not an index that is out of range."""

    class Done:
        returncode, stdout, stderr = 0, said, ""

    monkeypatch.setattr(hardware_program.subprocess, "run", lambda *_, **__: Done)
    with pytest.raises(OSError, match=said.strip() or "not a word"):
        hardware_program.look("/", {}, 9.0)
