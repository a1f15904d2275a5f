"""Which settings of a node go with which launcher."""

from pathlib import Path

import pytest

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.config.launchers import CONNECTION_KEYS, KINDS, kind_at
from hetero_hvd.errors import ConfigError

VALUES = {
    "user": "train",
    "port": 22,
    "identity_file": "key",
    "ssh_options": {"StrictHostKeyChecking": "no"},
    "srun_options": {"het-group": "1"},
    "python": "/opt/python",
    "tls_file": "alpha.pem",
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("key", CONNECTION_KEYS)
def test_a_setting_without_effect_is_refused(kind, key):
    """What it was written for does not happen; the line says so, and what to do."""
    keys = {"launcher": kind.name, key: VALUES[key]}
    if key in kind.keys:
        assert getattr(NodeConfig(name="alpha", **keys), key) == VALUES[key]
        return
    with pytest.raises(ConfigError) as error:
        NodeConfig(name="alpha", **keys)
    (line,) = error.value.problems
    assert line.startswith(f"{key}: found ")
    assert line.endswith("remove it")


@pytest.mark.parametrize(
    ("launcher", "key", "words"),
    [
        ("local", "tls_file", "address 127.0.0.1 is started locally; set 'launcher: agent' or"),
        ("local", "user", "address 127.0.0.1 is started locally; set 'launcher: ssh' or"),
        ("ssh", "tls_file", "has no effect with launcher ssh;"),
        ("agent", "python", "has no effect with launcher agent;"),
    ],
)
def test_where_another_launcher_was_probably_meant_it_is_named(launcher, key, words):
    """Whoever gives a login does not want a process of this machine."""
    with pytest.raises(ConfigError) as error:
        NodeConfig(name="alpha", launcher=launcher, **{key: VALUES[key]})
    assert error.value.problems == (f"{key}: found {VALUES[key]!r}, but {words} remove it",)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_node_without_an_address_has_its_name_unless_it_is_this_machine(kind):
    """Whatever starts its workers."""
    node = NodeConfig(name="alpha", launcher=kind.name)
    assert (node.kind, node.is_local) == (kind, kind.is_local)
    assert node.address == ("127.0.0.1" if kind.is_local else "alpha")


def test_without_a_launcher_the_address_decides():
    """A loopback address is this machine."""
    assert kind_at("127.0.0.7").is_local
    assert not kind_at("10.0.0.2").is_local


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_cluster_key_is_asked_for_where_it_is_needed(kind):
    """The node's own, or that of the job."""
    nodes = (NodeConfig(name="alpha", launcher=kind.name),)
    assert ClusterConfig(job=JobConfig(cluster_key_file="key"), nodes=nodes)
    if kind.uses_cluster_key:
        with pytest.raises(ConfigError, match=r"nodes\[0\].identity_file: found none"):
            ClusterConfig(nodes=nodes)
    else:
        assert ClusterConfig(nodes=nodes)


@pytest.mark.parametrize(
    ("node", "python"),
    [({"address": "10.0.0.2"}, "env/bin/python"), ({}, f"{Path.home()}/env/bin/python")],
)
def test_an_interpreter_in_the_home(node, python):
    """There ssh starts, and no shell on the node reads what is in nodes.yaml."""
    assert NodeConfig(name="alpha", python="~/env/bin/python", **node).python == python
