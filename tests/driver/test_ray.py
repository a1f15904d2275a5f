"""Jobs on a Ray cluster: a real one, of four nodes on this machine."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.engines.ray_job import RayJob
from tests.kit.engines.ray_nodes import RayRig, packages
from tests.kit.fault_job import gap_seconds
from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.matrix, pytest.mark.timeout(570)]

SCRIPT = Path(__file__).with_name("train.py")
COUNTING = Path(__file__).parents[1] / "kit" / "fault_script.py"
"""Proves how often each sample was used."""

EPOCHS = 40


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """A cluster of a head without CPUs and three nodes."""
    try:
        packages()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Ray cannot be had from PyPI: {error.stderr.decode(errors='replace')[-200:]}")
    rig = RayRig(tmp_path_factory.mktemp("ray") / "cluster")
    try:
        for name in ("alpha", "beta", "gamma"):
            rig.add(name)
        yield rig
    finally:
        rig.close()


@pytest.fixture
def start(rig, tmp_path):
    """Starts jobs; at the end, none of their processes may be left, wherever Ray had placed it."""
    runs = []

    def start(*options, script=(str(SCRIPT), "100000")):
        runs.append(RayJob(rig, tmp_path, *options, script=script))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()
    wait_until(lambda: not rig.ours(), 30, "the end of all agents")
    wait_until(lambda: not processes_of(tmp_path), 30, "the end of all processes")


def test_a_lost_node_costs_no_sample_and_a_new_one_joins(start, rig, tmp_path):
    """The others have gone on before Ray has noticed, and shares follow the nodes' speeds."""
    given = {"folder": str(tmp_path), "epochs": EPOCHS, "slow": {"gamma:0": 4.0}}
    given |= {"patient_from": 60, "patient_until": "joined"}
    run = start("--no-remember", script=(str(COUNTING), json.dumps(given)))
    run.wait_for(r"(?s)3 workers train together: alpha:0, beta:0, gamma:0.*step \d\d  ")
    shares = re.findall(r"shares alpha:0 (\d+) \| beta:0 \d+ \| gamma:0 (\d+)", run.said)
    assert rig.kill("beta") >= 4  # raylet, actor, agent, supervisor and worker
    run.wait_for("2 workers train together: alpha:0, gamma:0")
    assert "beta has left the Ray cluster" not in run.said
    rig.add("delta")
    run.wait_for("3 workers train together: alpha:0, gamma:0, delta:0")
    run.wait_for("beta has left the Ray cluster")
    (tmp_path / "joined").touch()
    assert run.process.wait(300) == 0, run.said
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert [result["times_used"] for result in results] == [[EPOCHS, EPOCHS]] * 3
    assert len({result["state"] for result in results}) == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["workers"]) == {"alpha:0", "beta:0", "gamma:0", "delta:0"}
    assert "head is left out: it has CPU=0, and 1 is needed" in run.said
    assert any(int(slow) < int(fast) for fast, slow in shares[1:]), shares
    stood_still = gap_seconds(tmp_path, before=3, after=2)
    sys.stdout.write(f"from the last step of three to the first of two: {stood_still:.3f} s\n")


def test_a_driver_that_is_killed_leaves_nothing_behind(start, rig):
    """Ray ends the actors of a driver that is gone, and each takes its agent along."""
    run = start()
    run.wait_for(r"step \d\d.*samples/s")
    assert len([words for words in rig.ours() if "agent_program" in words]) >= 2
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    wait_until(lambda: not rig.ours(), 30, "the end of all agents")


def test_an_actor_that_is_killed_is_started_again(start, rig):
    """Its agent goes with it, its worker is lost, and comes back through another agent."""
    run = start()
    run.wait_for(r"step \d\d.*samples/s")
    assert rig.kill_actors("alpha") == 1
    run.wait_for(r"alpha: .* tried again in 5 s")
    run.wait_for(r"(?s)tried again in 5 s.*workers train together: [^\n]*alpha:0")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(60) == 143


REFUSED = {
    "no such resource": (
        ("--ray-resources", "unicorn=1", "--elastic-timeout-seconds", "3"),
        "hetero-hvd: --ray: no agent was started on any node in 3 s",
        75,
    ),
    "an address that is none": (
        ("--ray", "nonsense"),
        "hetero-hvd: --ray nonsense: Invalid address format: nonsense",
        2,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(start, name):
    """With exit code 2, or 75 where there may be such a node later; nothing stays behind."""
    options, line, code = REFUSED[name]
    run = start(*options)
    assert run.process.wait(120) == code, run.said
    assert run.said.splitlines()[-1].startswith(line)
