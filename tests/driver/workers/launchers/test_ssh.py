"""The words that ssh gets."""

import os
import subprocess
import sys

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.driver.workers.launchers.ssh import INSTALLED
from hetero_hvd.exit_codes import EXIT_NOT_STARTED


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


@pytest.mark.process
@pytest.mark.parametrize(
    ("there", "code", "said"),
    [
        ((f"{INSTALLED}/bin", "own"), 0, "venv/bin/python -m hetero_hvd.supervisor"),
        (("own",), 0, "own/python -m hetero_hvd.supervisor"),
        ((), EXIT_NOT_STARTED, "to do: hetero-hvd install gpubox"),
    ],
    ids=["installed", "the driver's own", "none"],
)  # fmt: skip
def test_the_interpreter_is_found_on_the_node(tmp_path, monkeypatch, there, code, said):
    """That of `hetero-hvd install` first; where there is none, how to get one."""
    for folder in there:
        (tmp_path / folder).mkdir(parents=True)
        python = tmp_path / folder / "python"
        python.write_text('#!/bin/sh\necho "$0" "$@"\n')
        python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    node = NodeConfig(name="gpubox", launcher="ssh")
    vector = launcher_of(node).command(node, ("--gpus",), "")
    found = subprocess.run(
        ["sh", "-c", vector[-1]],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == code
    assert said in found.stdout + found.stderr
