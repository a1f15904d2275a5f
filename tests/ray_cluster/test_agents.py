"""From the driver through the process that talks with Ray to agents that listen, and back."""

import json
import shutil
import subprocess
import sys

import pytest

from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.ray_cluster import agents as driver_end
from hetero_hvd.ray_cluster.agents import RayAgents
from tests.leftovers import wait_until
from tests.ray_cluster.conftest import entry


@pytest.fixture
def connect():
    """Makes the driver's end, with all that it says, and closes it."""
    made = []

    def connect(address="auto", timeout_seconds=60.0, **resources):
        said = []
        agents = RayAgents(address, resources, say=said.append, timeout_seconds=timeout_seconds)
        made.append(agents)
        return agents, said

    yield connect
    for agents in made:
        agents.close()


def nodes_of(agents):
    """The nodes that are granted, by name."""
    return {node["name"]: node for node in json.loads(agents.granted())["nodes"]}


def questions(node):
    """How the driver's launcher asks an agent for its GPUs."""
    where = [node["address"], str(node["port"]), node["identity_file"]]
    words = [sys.executable, "-m", "hetero_hvd.agent.client", *where, "--gpus"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_agents_listen_come_and_go(told_ray, connect):
    """Each for who holds the job's own key; a job that is over leaves none."""
    told_ray.list(entry("1", "alpha"), entry("2", "beta", GPU=2.0))
    agents, said = connect()
    agents.start()
    found = nodes_of(agents)
    assert {name: node["slots"] for name, node in found.items()} == {"alpha": 1, "beta": 2}
    assert questions(found["alpha"]).stdout == "0\n"
    told_ray.list(entry("1", "alpha"), entry("3", "gamma"))
    wait_until(lambda: nodes_of(agents).keys() == {"alpha", "gamma"}, 20, "the third node")
    assert "beta has left the Ray cluster" in said
    options = [(o["node"], o["num_cpus"], o["num_gpus"]) for o in told_ray.options]
    assert options == [("1", 2.0, 0), ("2", 2.0, 2.0), ("3", 2.0, 0)]
    alpha = nodes_of(agents)["alpha"]
    kept = shutil.copy(alpha["identity_file"], told_ray.folder / "key")
    agents.close()
    lost = questions(alpha | {"identity_file": str(kept)})
    assert lost.returncode == 255
    assert "Connect call failed" in lost.stderr


def test_what_is_asked_for_is_what_ray_is_asked_for(told_ray, connect):
    """Under its names."""
    told_ray.list(entry("1", GPU=4.0, memory=2.0**40, unicorn=3.0))
    agents, _ = connect(GPU=2.0, CPU=1.0, memory=1e9, unicorn=0.5)
    agents.start()
    (asked,) = told_ray.options
    assert asked == {
        "node": "1",
        "num_cpus": 1.0,
        "num_gpus": 2.0,
        "memory": 10**9,
        "resources": {"unicorn": 0.5},
        "max_restarts": 0,
    }


def test_an_actor_that_was_out_of_reach_for_a_moment_is_asked_again(told_ray, connect):
    """Ray tells that from its end."""
    told_ray.list(entry("1"))
    told_ray.mark("away", "1")
    agents, said = connect()
    agents.start()
    assert nodes_of(agents).keys() == {"box"}
    assert said == []


REFUSED = {
    "no such cluster": ("nonsense", UserError, "--ray nonsense: Invalid address format: nonsense"),
    "no cluster here": ("nobody", TryAgainError, "--ray nobody: Could not find any running Ray"),
    "Ray ends the process": ("dead", TryAgainError, "--ray dead: lost touch with GCS"),
    "no answer": ("silent", TryAgainError, "--ray silent: no answer in 1 s; is the cluster there"),
    "no node": ("auto", TryAgainError, "--ray: no agent was started on any node in 1 s"),
}


@pytest.mark.usefixtures("told_ray")
@pytest.mark.parametrize("name", REFUSED)
def test_a_cluster_that_has_nothing_for_us_is_refused(connect, monkeypatch, name):
    """In one line; what may pass is another error than an address that can be none."""
    address, error, words = REFUSED[name]
    if address == "silent":
        monkeypatch.setattr(driver_end, "CONNECT_SECONDS", 1.0)
        monkeypatch.setattr(driver_end, "END_SECONDS", 0.1)
    agents, _ = connect(address, timeout_seconds=1.0 if address == "auto" else 60.0)
    with pytest.raises(UserError) as refused:
        agents.start()
    assert type(refused.value) is error
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


BROKEN = {
    "the key": "cluster.key'",
    "a report": "the process that talks with Ray: Input data was truncated",
    "a report of another kind": "the process that talks with Ray: Expected `bool`",
    "the program": "No such file or directory: '/nowhere/python'",
}


@pytest.mark.usefixtures("told_ray")
@pytest.mark.parametrize("what", BROKEN)
def test_what_cannot_be_read_or_understood_is_one_line(connect, monkeypatch, tmp_path, what):
    """Nobody waits for a thread that has died of it."""
    program = tmp_path / "program"
    told = {"a report": "{", "a report of another kind": '{"connected": 1}'}.get(what, "")
    program.write_text(f"#!/bin/sh\nread order; echo '{told}'\n")
    program.chmod(0o755)
    if what == "the key":
        monkeypatch.setattr("hetero_hvd.ray_cluster.agents.make_key", lambda _: None)
    else:
        python = "/nowhere/python" if what == "the program" else str(program)
        monkeypatch.setattr("hetero_hvd.ray_cluster.agents.sys.executable", python)
    agents, _ = connect()
    with pytest.raises(UserError) as refused:
        agents.start()
    assert BROKEN[what] in str(refused.value)
    assert "\n" not in str(refused.value)


TRACEBACK = "ray::NodeActor.__init__()\n  File x\nModuleNotFoundError: No module named 'hetero_hvd'"


def test_a_node_whose_actor_fails_is_told_and_the_others_train(told_ray, connect):
    """By the last line of Ray's traceback."""
    told_ray.list(entry("1", "alpha"), entry("2", "beta"))
    told_ray.mark("refused", "2", TRACEBACK)
    agents, said = connect()
    agents.start()
    wait_until(lambda: said, 10, "the reason")
    assert said == ["beta: ModuleNotFoundError: No module named 'hetero_hvd'; tried again in 5 s"]
    assert nodes_of(agents).keys() == {"alpha"}


def test_a_ray_that_was_lost_is_used_again(told_ray, connect, monkeypatch):
    """Its nodes come back as others of the same names."""
    monkeypatch.setattr("hetero_hvd.ray_cluster.agents.FIRST_DELAY_SECONDS", 0.1)
    told_ray.list(entry("1"))
    agents, said = connect()
    agents.start()
    before = nodes_of(agents)["box"]["port"]
    agents._process.kill()
    wait_until(
        lambda: nodes_of(agents).get("box", {"port": before})["port"] != before, 20, "another agent"
    )
    assert said[0].startswith("Ray is out of reach: ")
    assert said[0].endswith("; tried again in 0.1 s")
