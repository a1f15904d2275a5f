"""Packages that nothing here requires, and a rig needs: from PyPI into the user's cache, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.kit.checkout import CHECKOUT


def fetched(name: str, version: str, *, is_constrained: bool = False) -> Path:
    """The folder with a package and what it needs; made if it is not there, which takes a minute.

    Args:
        name: Of the package.
        version: Of it.
        is_constrained: Whether what it needs has the versions of `scripts/constraints.txt`.

    Raises:
        subprocess.CalledProcessError: It cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / "hetero_hvd" / f"{name}-{version}-{python}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        words = ["-m", "pip", "install", "--quiet", "--target", str(made), f"{name}=={version}"]
        if is_constrained:
            words += ["--constraint", str(CHECKOUT / "scripts" / "constraints.txt")]
        try:
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            with suppress(OSError):  # another one was faster
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder
