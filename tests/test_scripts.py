"""The scripts in shell are sound, and refuse what they do not take before they do anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "scripts", ROOT / "scripts" / "horovod", ROOT / ".ci")
FILES = sorted(path for folder in FOLDERS for path in folder.iterdir() if path.is_file())
SHELL = [path for path in FILES if path.read_bytes().startswith(b"#!/bin/sh\n")]
HOROVOD = {"portable-wheel": "FOLDER", "arm64": "qemu-user"}


def start(path, *words, **environment):
    """Run a script from another folder."""
    return subprocess.run(
        [path, *words],
        cwd="/",
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_a_script_can_be_read_to_its_end(path):
    """By any shell, and it ends at the first command that fails, or at a name that is not set."""
    subprocess.run(["sh", "-n", path], check=True)
    assert os.access(path, os.X_OK)
    assert "\nset -eu\n" in path.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_no_script_has_a_mistake_that_a_tool_knows():
    """Quoting above all."""
    subprocess.run(["shellcheck", "--severity=error", *SHELL], check=True)


@pytest.mark.parametrize("name", HOROVOD)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_help(name, word):
    """And not the name of a folder."""
    done = start(ROOT / "scripts" / "horovod" / name, word)
    assert (done.returncode, done.stderr) == (0, "")
    assert HOROVOD[name] in done.stdout
    assert not Path("/", word).exists()


MISTAKES = {
    "portable-wheel": [(), ("",), ("--folder",), ("a", "b"), ("--", "a")],
    "arm64": [("",), ("--folder",), ("a",), ("a", "b")],
}


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name, all_of in MISTAKES.items() for words in all_of]
)
def test_what_is_not_taken_is_one_line(name, words):
    """Exit code 2, before anything is fetched or made."""
    done = start(ROOT / "scripts" / "horovod" / name, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"scripts/horovod/{name}" in line


def test_a_compiler_for_arm64_that_is_missing_is_one_line(tmp_path):
    """With what to install."""
    programs = ("sh", "dirname", "cd", "sed")
    for program in filter(shutil.which, programs):
        (tmp_path / program).symlink_to(shutil.which(program))
    done = start(ROOT / "scripts" / "horovod" / "arm64", PATH=str(tmp_path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "is missing: apt-get install g++-aarch64-linux-gnu qemu-user cmake" in line
