"""The second agent of a machine says that it is one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

from hetero_hvd.agent.one_agent import only_agent

KEY = secrets.token_bytes(32)
OTHERS = {
    "of the same machine": (KEY, "m", True),
    "of another part of it": (KEY, "part", False),
    "of another cluster": (secrets.token_bytes(32), "m", False),
}
HOLDER = """
import sys
from hetero_hvd.agent.one_agent import only_agent
with only_agent(bytes.fromhex(sys.argv[1]), sys.argv[2], print):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("has_ended", [False, True])
def test_the_second_one_says_so(kind, has_ended):
    """With the number of the first one, until that has ended, in whatever way."""
    key, machine, is_told = OTHERS[kind]
    said = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, key.hex(), machine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "holds\n"
        if has_ended:
            other.kill()
            other.wait()
        with only_agent(KEY, "m", said.append):
            pass
        other.stdin.close()
    if not is_told or has_ended:
        assert said == []
        return
    (line,) = said
    assert line.startswith(f"another agent of this machine is process {other.pid}: ")
    assert f"process {os.getpid()}, counts" in line


def test_the_first_one_says_nothing_whenever_it_is_started_anew():
    """Its name goes with it."""
    said = []
    for _ in range(3):
        with only_agent(KEY, "anew", said.append):
            pass
    assert said == []
