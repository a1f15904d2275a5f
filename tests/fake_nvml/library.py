"""Compiles the stand-in for the driver's library, and says how a process comes to load it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """Compile it into a folder; returns the folder."""
    vector = [
        "gcc",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / NAME),
    ]
    subprocess.run([*vector, str(SOURCE)], check=True, timeout=60)
    return folder


def environment(folder: Path, mode: str = "", *, told: Path | None = None) -> dict[str, str]:
    """The environment of a process that shall find two GPUs, and shares samples with nobody else.

    Args:
        folder: With the library.
        mode: See nvml.c.
        told: Folder of the files that say what GPU 0 does; see nvml.c.
    """
    files = {"FAKE_NVML_FOLDER": str(told)} if told else {}
    own = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": mode, FOLDER_VARIABLE: str(folder / "own")}
    return os.environ | own | files
