"""The words that ssh gets."""

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.registry import launcher_of


def test_ssh_gets_an_argument_vector():
    """Options come from nodes.yaml; nothing passes through a local shell, nothing is secret."""
    node = NodeConfig(
        name="gpubox",
        address="10.0.0.2",
        launcher="ssh",
        user="train",
        port=2222,
        identity_file="/keys/id",
        ssh_options={"StrictHostKeyChecking": "no"},
        python="/opt/my python/bin/python",
    )
    vector = launcher_of(node).command(node, (), "")
    assert vector[:2] == ["ssh", "-T"]
    assert "StrictHostKeyChecking=no" in vector
    assert "ServerAliveInterval=5" in vector
    assert vector[-7:] == [
        "-p",
        "2222",
        "-i",
        "/keys/id",
        "train@10.0.0.2",
        "--",
        "exec '/opt/my python/bin/python' -m hetero_hvd.supervisor",
    ]
