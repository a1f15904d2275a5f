"""What a run stands on, as it is recorded."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess

import pytest

from hetero_hvd.run.records.origin import origin_of

TEXT = "print(1)\n"
IDENTITY = {
    f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def git(folder, *arguments):
    """Run git there."""
    subprocess.run(["git", "-C", folder, *arguments], env=os.environ | IDENTITY, check=True)


@pytest.fixture
def project(tmp_path):
    """A repository with one committed script."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "train.py").write_text(TEXT)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_versions_digest_and_commit(project):
    """A change that is not committed is told."""
    found = origin_of(("train.py", "--lr", "1"), project)
    assert found["python"] == platform.python_version()
    assert found["torch"] == importlib.metadata.version("torch")
    assert found["script_sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert len(found["git_commit"]) == 40
    assert found["git_state"] == "as committed"
    (project / "train.py").write_text(TEXT * 2)
    changed = origin_of(("python", "train.py"), project)
    assert changed["git_commit"] == found["git_commit"]
    assert changed["script_sha256"] != found["script_sha256"]
    assert changed["git_state"] == "with changes"


@pytest.mark.parametrize("command", [("train.py",), ("./program",), ("missing.py",)])
def test_without_git_or_script_the_versions_remain(tmp_path, monkeypatch, command):
    """No repository, no git, no script."""
    (tmp_path / "train.py").write_text(TEXT)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = origin_of(command, tmp_path)
    assert {"python", "torch"} < found.keys()
    assert "git_commit" not in found
    assert ("script_sha256" in found) is (command == ("train.py",))
