"""Compiles the library that gives a process other clocks, and says how one comes to load it."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def build(folder: Path) -> Path:
    """Compile it into a folder; returns the library."""
    library = folder / "clock.so"
    vector = ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*vector, str(SOURCE), "-ldl"], check=True, timeout=60)
    return library


def environment(library: Path, shifts: Path | None = None) -> dict[str, str]:
    """What a process needs in its environment so that its clocks are shifted.

    Args:
        library: That was built.
        shifts: File with two whole numbers, see clock.c; None: its wall clock is 100 s ahead.
    """
    return {"LD_PRELOAD": str(library)} | ({"FAKE_CLOCK": str(shifts)} if shifts else {})
