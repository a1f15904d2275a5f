"""What runs on a node: the agent there, its environment, and its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hetero_hvd.ray_cluster.agent_program import AgentPort
from hetero_hvd.ray_cluster.node_actor import NodeActor
from tests.leftovers import wait_until

KEY = "ab" * 32

ENVIRONMENTS = {
    "CPUs that nobody asked for": (None, False, {}, {"CUDA_VISIBLE_DEVICES": ""}),
    "so many threads": (4, False, {}, {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": ""}),
    "Ray's GPUs": (
        None,
        True,
        {"CUDA_VISIBLE_DEVICES": "2,3"},
        {"CUDA_VISIBLE_DEVICES": "2,3"},
    ),
    "no GPU, where Ray leaves them all": (
        None,
        False,
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": ""},
    ),
}
GIVEN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_agent_has_what_ray_has_lent_and_no_more(name, monkeypatch):
    """Ray's own OMP_NUM_THREADS, which is 1 where nobody has asked for CPUs, is not one of that."""
    num_threads, has_gpus, given, wanted = ENVIRONMENTS[name]
    for variable, value in ({"OMP_NUM_THREADS": "1"} | given).items():
        monkeypatch.setenv(variable, value)
    actor = NodeActor(KEY, num_threads, has_gpus=has_gpus)
    port, directory = actor.listening()
    agent = actor._agent
    assert directory == str(Path.cwd())
    listening = [c.laddr.port for c in psutil.Process(agent.pid).net_connections() if not c.raddr]
    assert port in listening
    found = psutil.Process(agent.pid).environ()
    assert {n: v for n, v in found.items() if n in GIVEN} == wanted
    assert KEY not in " ".join([*psutil.Process(agent.pid).cmdline(), *found.values()])
    agent.stdin.close()
    assert actor.ended() == "exited with code 0"
    agent.stdout.close()


HOLDER = f"""
import sys
from hetero_hvd.ray_cluster.node_actor import NodeActor
actor = NodeActor({KEY!r}, None, has_gpus=False)
print(actor._agent.pid, *actor.listening(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_agent_ends_with_its_actor(number):
    """In whatever way that ends."""
    words = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        agent = int(holder.stdout.readline().split()[0])
        assert psutil.pid_exists(agent)
        holder.send_signal(number)
        wait_until(lambda: not psutil.pid_exists(agent), 20, "the end of the agent")


def test_an_agent_without_an_order_ends():
    """Its actor was killed before it could say what to do."""
    words = [sys.executable, "-m", "hetero_hvd.ray_cluster.agent_program"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_signal_ends_the_agent_in_order():
    """As an operator would end it."""
    actor = NodeActor(KEY, None, has_gpus=False)
    port, _ = actor.listening()
    assert json.loads(json.dumps({"port": port})) == {"port": AgentPort(port=port).port}
    os.kill(actor._agent.pid, signal.SIGTERM)
    assert actor.ended() == "exited with code 0"
    actor._agent.stdin.close()
    actor._agent.stdout.close()
