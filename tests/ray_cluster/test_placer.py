"""Agents as nodes come and go, without waiting: time is an argument."""

import pytest

from hetero_hvd.ray_cluster.placement import ClusterNode
from hetero_hvd.ray_cluster.placer import Placer


class ToldAgent:
    """An agent of which is told what becomes of it."""

    def __init__(self, taken):
        self.taken = taken
        self.port = 0
        self.directory = "/there"
        self.why_ended = ""

    def look(self):
        """Nothing to ask."""

    def close(self):
        """Nothing to end."""


class Scene:
    """A cluster that is told which nodes it has, and what the placer says of it."""

    has_working_dir = False

    def __init__(self, wanted=None):
        self.listed = []
        self.agents = {}
        self.said = []
        self.reports = []
        self.placer = Placer(self, wanted or {}, "key", self._tell)

    def _tell(self, report):
        if report.said:
            self.said.append(report.said)
        else:
            self.reports.append(report)

    def nodes(self):
        """See `Cluster`."""
        return self.listed

    def place(self, node, taken, key):
        """See `Cluster`."""
        assert key == "key"
        self.agents[node.node_id] = ToldAgent(taken)
        return self.agents[node.node_id]

    def add(self, node_id, label="box", **resources):
        """A node of the cluster."""
        self.listed.append(
            ClusterNode(
                node_id=node_id,
                label=label,
                address="10.0.0.1",
                resources={"CPU": 2.0} | resources,
            )
        )

    @property
    def names(self):
        """Of the nodes in the newest report."""
        return [node.name for node in self.reports[-1].nodes]


@pytest.fixture
def scene():
    """A cluster of two nodes that share a name."""
    scene = Scene()
    scene.add("111111a")
    scene.add("222222b")
    scene.placer.look(0.0)
    return scene


def test_a_node_is_told_when_its_agent_listens(scene):
    """All are, when none is still to come; without news nothing is told."""
    assert [(r.nodes, r.is_settled) for r in scene.reports] == [((), False)]
    scene.agents["222222b"].port = 9
    scene.placer.look(0.5)
    assert (scene.names, scene.reports[-1].is_settled) == (["box-222222"], False)
    scene.agents["111111a"].port = 8
    scene.placer.look(1.0)
    scene.placer.look(1.5)
    assert (scene.names, scene.reports[-1].is_settled) == (["box", "box-222222"], True)
    assert [(n.port, n.slots, n.directory) for n in scene.reports[-1].nodes] == [
        (8, 1, ""),
        (9, 1, ""),
    ]
    assert len(scene.reports) == 3
    assert scene.said == []


def test_who_gets_no_actor_is_told_once_and_not_waited_for(scene):
    """Others of the cluster have what it needs; it comes when it comes."""
    scene.agents["111111a"].port = 8
    for now_seconds in range(1, 40):
        scene.placer.look(float(now_seconds))
    assert len(scene.said) == 1
    assert scene.said[0].startswith(
        "box-222222: Ray has not started the agent yet, which needs CPU=2:"
    )
    assert (scene.names, scene.reports[-1].is_settled) == (["box"], True)
    scene.agents["222222b"].port = 9
    scene.placer.look(50.0)
    assert scene.names == ["box", "box-222222"]


def test_a_node_that_has_left_is_no_more_and_its_name_is_free(scene):
    """The machine that takes its place is another node to Ray."""
    for agent in scene.agents.values():
        agent.port = 8
    scene.placer.look(1.0)
    del scene.listed[0]
    scene.placer.look(2.0)
    assert scene.said == ["box has left the Ray cluster"]
    assert scene.names == ["box-222222"]
    scene.add("333333c")
    scene.placer.look(3.0)
    scene.agents["333333c"].port = 7
    scene.placer.look(4.0)
    assert scene.names == ["box", "box-222222"]


def test_an_agent_that_ends_is_started_again_ever_later(scene):
    """Its node is none until then; the longest wait is a minute."""
    waits, ended_at = [], 0.0
    now_seconds = 0.0
    while len(waits) < 6:
        agent = scene.agents["111111a"]
        agent.port = 8
        agent.why_ended = "its agent was ended by SIGKILL"
        ended_at = now_seconds
        while scene.agents["111111a"] is agent:
            scene.placer.look(now_seconds)
            now_seconds += 0.5
        waits.append(now_seconds - 0.5 - ended_at)
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert scene.said[0] == "box: its agent was ended by SIGKILL; tried again in 5 s"
    assert all("box" not in [n.name for n in report.nodes] for report in scene.reports)


def test_who_has_not_enough_is_left_out_and_told_once():
    """Without waiting for it."""
    scene = Scene({"GPU": 1.0})
    scene.add("1", "cpubox")
    scene.add("2", "gpubox", GPU=1.0)
    for now_seconds in range(5):
        scene.placer.look(float(now_seconds))
    scene.agents["2"].port = 8
    scene.placer.look(5.0)
    assert scene.said == ["cpubox is left out: it has GPU=0, and 1 is needed"]
    assert (scene.names, scene.reports[-1].is_settled) == (["gpubox"], True)


def test_in_a_working_dir_of_ray_the_workers_run_where_the_actor_does():
    """Ray unpacks it under a name of its own on each node."""
    scene = Scene()
    scene.has_working_dir = True
    scene.add("1")
    scene.placer.look(0.0)
    scene.agents["1"].port = 8
    scene.placer.look(1.0)
    assert [node.directory for node in scene.reports[-1].nodes] == ["/there"]
