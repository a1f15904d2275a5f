"""What was tried: the script, its version and that of all it stands on, as of a run's start."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = ("hetero_hvd", "horovod", "torch")
GIT_SECONDS = 5.0
MAX_SCRIPT_BYTES = 16 * 2**20


def origin_of(command: Sequence[str], folder: Path) -> dict[str, str]:
    """Facts by name; what cannot be found out is not among them.

    Args:
        command: The user's, of which the first word that is a file is the script.
        folder: Where it runs.
    """
    facts = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    scripts = (path for word in command if (path := folder / word).suffix == ".py")
    script = next((path for path in scripts if path.is_file()), None)
    if script is not None:
        facts |= dict(_of_script(script))
    return facts


def _of_script(script: Path) -> Iterator[tuple[str, str]]:
    try:
        with script.open("rb") as file:
            content = file.read(MAX_SCRIPT_BYTES)
    except OSError:
        return
    yield "script_sha256", hashlib.sha256(content).hexdigest()
    commit = _git(script.parent, "rev-parse", "HEAD")
    if commit:
        yield "git_commit", commit
        is_dirty = _git(script.parent, "status", "--porcelain", "--untracked-files=no")
        yield "git_state", "with changes" if is_dirty else "as committed"


def _git(folder: Path, *arguments: str) -> str:
    """What git says; empty where there is no git, no repository, or no answer in time."""
    command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
