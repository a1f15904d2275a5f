"""Compiles the stand-in for the driver's library, and says how a process comes to load it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """Compile it into a folder; returns the folder."""
    vector = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", folder / NAME]
    subprocess.run([*vector, SOURCE], check=True, timeout=60)
    return folder


def environment(folder: Path, mode: str = "") -> dict[str, str]:
    """The environment of a process that shall find two GPUs; for `mode` see nvml.c."""
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": mode}
