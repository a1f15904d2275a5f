"""`doctor -f` on real hosts: each thing that can be wrong is a row with what to do, no hang."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from hetero_hvd.config import load_cluster
from hetero_hvd.remote import node_findings
from hetero_hvd.remote.examination import Examination
from hetero_hvd.remote.node_findings import Reference, report_on
from hetero_hvd.remote.programs.examination_program import TokenListener, digest_of, try_to_reach

pytestmark = pytest.mark.cluster
HANG_SECONDS = 8.0
"""After which a node counts as hung; a good one answers sooner, however busy this machine is."""

BARE_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")


@pytest.fixture
def hosts(virtual_cluster):
    """Two hosts that see this checkout, its environment and the same files."""
    return virtual_cluster({"alpha": 100, "beta": 50})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the script is, here and on the hosts."""
    (tmp_path / "train.py").write_text("print('trains')")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_nodes(folder, *nodes):
    """A nodes.yaml of these."""
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"nodes": list(nodes)}))


def doctor(folder, *words):
    """What the command prints, as JSON, and its exit code."""
    vector = [sys.executable, "-m", "hetero_hvd", "doctor", "-f", "nodes.yaml", "--json", *words]
    done = subprocess.run(vector, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return json.loads(done.stdout), done.returncode


@pytest.mark.process
def test_where_all_is_well_nothing_is_to_be_done(hosts, folder):
    """Two hosts and this machine: software, script, data, and all reach all."""
    nodes = [hosts[name].node(devices=[], slots=1) for name in ("alpha", "beta")]
    write_nodes(folder, *nodes, {"name": "here", "devices": []})
    found, code = doctor(folder, "--", "train.py", "--data=data", "7")
    assert [problem for node in found["nodes"] for problem in node["problems"]] == []
    assert (code, found["can_train"]) == (0, True)
    for node in found["nodes"]:
        others = {"driver", "alpha", "beta", "here"} - {node["node"]}
        assert node["peers"] == dict.fromkeys(others, "")
        assert abs(node["clock_offset_seconds"]) < 0.5
        assert node["diagnosis"]["can_train"]
        assert node["missing"] == []
        assert node["disk_bytes"] > 0
    assert found["nodes"][1]["diagnosis"]["hardware"]["cores"] == 0.5


@pytest.mark.process
def test_the_table_has_a_row_for_each_node(hosts, folder):
    """Also for one that is not there; one that an agent starts is named below."""
    key = {"launcher": "agent", "identity_file": "key"}
    alpha = hosts["alpha"].node(devices=[])
    write_nodes(folder, alpha, hosts["beta"].node(port=9), {"name": "gamma", **key})
    vector = [sys.executable, "-m", "hetero_hvd", "doctor", "-f", "nodes.yaml"]
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(
        vector, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    rows = [line for line in done.stdout.splitlines() if line.startswith(("│ alpha", "│ beta"))]
    assert "as here" in rows[0]
    assert "nothing" in rows[0]
    assert "none" in rows[1]
    assert "gamma: left out, it has launcher agent" in done.stdout
    assert done.stdout.endswith("Training cannot start.\n")


def examine(folder, *nodes, reference=None, seconds=30.0, paths=()):
    """Look at nodes; a report for each."""
    write_nodes(folder, *nodes)
    cluster = load_cluster(folder / "nodes.yaml", environment={}, flags={})
    script = reference.script[0] if reference and reference.script else None
    examination = Examination(cluster, script=script, paths=paths, timeout_seconds=seconds)
    return [report_on(facts, reference or what_is_here()) for facts in examination.run()]


def what_is_here(*, script=None, digest=None, **versions):
    """What a node without any package has, on which looking is fast, and more."""
    nothing = dict.fromkeys(("hetero_hvd", "horovod", "torch"))
    python = {"python": "{}.{}.0".format(*sys.version_info)}
    return Reference(
        versions=nothing | python | versions,
        digest=digest,
        script=script,
        directory=str(Path.cwd()),
    )


def plain(folder):
    """Settings of a node with the system's Python alone."""
    return {"python": BARE_PYTHON, "directory": str(folder), "env": {}}


FAULTS = {
    "no way": ({}, {"port": 9}, "nothing listens at", "start sshd", True),
    "no interpreter": ({}, {"python": "/no/bin/python"}, "is not there", "install alpha", True),
    "no folder": ({}, {"directory": "/no"}, "no folder /no", "make it there", True),
    "other script": ({"script": ("train.py", "0")}, {}, "another one than here", "scp -P 22", True),
    "no script": ({"script": ("none.py", "0")}, {}, "is no none.py in", "scp -P 22 none.py", True),
    "no script in its folder": (
        {"script": ("my runs/none.py", "0")},
        {},
        "is no my runs/none.py in",
        "/my runs/none.py'",
        True,
    ),
    "no torch": ({"torch": "2.13.0"}, {}, "torch is missing", "hetero-hvd install alpha", True),
    "other files": ({"digest": "0"}, {}, "and other files", "hetero-hvd install alpha", True),
    "other python": ({"python": "3.9.1"}, {}, "python is 3.", "hetero-hvd install alpha", False),
    "no data": ({"paths": ["elsewhere"]}, {}, "elsewhere is not there", "copy it there", False),
    "no interface": ({}, {"interface": "eth9"}, "interface eth9: ", "correct that", True),
}
"""What the driver has that the node has not, what nodes.yaml says of it, the fact, what to do, and
whether training cannot start."""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_a_problem_with_what_to_do(bare_cluster, folder, fault):
    """Of its own node; a note where training could start all the same."""
    changes, keys, what, remedy, stops = FAULTS[fault]
    paths = changes.get("paths", ())
    keys = {"name": "alpha", **plain(folder), **keys}
    reference = what_is_here(**{key: changes[key] for key in changes.keys() - {"paths"}})
    (report,) = examine(
        folder, bare_cluster["gamma"].node(**keys), reference=reference, paths=paths
    )
    (problem,) = report.problems
    assert what in problem.what
    assert remedy in problem.remedy
    assert problem.stops_training == stops
    assert report.can_train != stops


def test_a_node_that_hangs_is_a_row_and_costs_its_time_once(bare_cluster, folder):
    """The others are looked at as if it were not there."""
    keys = plain(folder)
    nodes = [bare_cluster[name].node(**keys) for name in ("gamma", "delta")]
    sshd, _ = bare_cluster["gamma"].sshds()
    os.kill(sshd, signal.SIGSTOP)
    try:
        began = time.monotonic()
        gamma, delta = examine(folder, *nodes, seconds=HANG_SECONDS)
        took_seconds = time.monotonic() - began
    finally:
        os.kill(sshd, signal.SIGCONT)
    assert gamma.problems[0].what == f"no answer in {HANG_SECONDS:g} s"
    assert delta.can_train
    assert delta.facts.peers == {"driver": ""}
    assert took_seconds < 2 * HANG_SECONDS


@pytest.mark.parametrize("closed", ["driver", "peer"])
def test_a_closed_port_is_found_from_where_it_is_closed(bare_cluster, folder, closed):
    """To the driver, or between two nodes: both ways are tried."""
    gamma, delta = bare_cluster["gamma"], bare_cluster["delta"]
    target = bare_cluster.gateway if closed == "driver" else delta.address
    nodes = [host.node(**plain(folder)) for host in (gamma, delta)]
    inside = ["ip", "netns", "exec", gamma.namespace, "iptables"]
    rule = ["OUTPUT", "-p", "tcp", "--syn", "-d", target, "-j", "REJECT"]
    if subprocess.run([*inside, "-A", *rule], capture_output=True, check=False).returncode:
        pytest.skip("needs iptables")
    try:
        of_gamma, of_delta = examine(folder, *nodes)
    finally:
        subprocess.run([*inside, "-D", *rule], check=True)
    name = "driver" if closed == "driver" else "delta"
    assert [problem.what for problem in of_gamma.problems] == [
        f"it cannot reach {name}: Connection refused"
    ]
    assert of_delta.problems == ()


def test_only_who_knows_the_token_gets_an_answer():
    """And who answers something else is not taken for one of us."""
    listener = TokenListener("127.0.0.1", "a" * 32, "b" * 32)
    assert try_to_reach("127.0.0.1", listener.port, "a" * 32, "b" * 32) == ""
    stranger = try_to_reach("127.0.0.1", listener.port, "c" * 32, "b" * 32)
    assert stranger == "somebody else answers there"
    assert try_to_reach("127.0.0.1", listener.port, "a" * 32, "c" * 32) == stranger
    listener.close()


def test_a_listener_that_is_closed_leaves_no_thread():
    """One that waits for a connection holds a file descriptor that no list of them shows."""
    before = set(threading.enumerate())
    listener = TokenListener("127.0.0.1", "a" * 32, "b" * 32)
    assert listener.thread in set(threading.enumerate()) - before
    listener.close()
    listener.thread.join(5)
    assert set(threading.enumerate()) <= before  # another test's last thread may end meanwhile
    assert try_to_reach("127.0.0.1", listener.port, "a" * 32, "b" * 32) == "Connection refused"


def test_little_room_and_a_wrong_clock_are_notes(bare_cluster, folder, monkeypatch):
    """Training can start all the same."""
    monkeypatch.setattr(node_findings, "DISK_BYTES", 2**60)
    monkeypatch.setattr(node_findings, "SHM_BYTES", 2**60)
    monkeypatch.setattr(node_findings, "CLOCK_SECONDS", -1.0)
    keys = plain(folder)
    (report,) = examine(folder, bare_cluster["gamma"].node(**keys))
    words = " ".join(problem.what for problem in report.problems)
    assert "free where it works" in words
    assert "free in /dev/" in words
    assert "its clock is " in words
    assert report.can_train


def test_the_digest_is_of_what_is_in_the_files(tmp_path):
    """Of their names and contents; not of what Python compiles."""
    (tmp_path / "a.py").write_text("1")
    first = digest_of(tmp_path)
    (tmp_path / "a.pyc").write_text("compiled")
    assert digest_of(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert digest_of(tmp_path) != first
