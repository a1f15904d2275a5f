"""Where this checkout's packages are, for every process that a rig or a benchmark starts."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PACKAGES = (CHECKOUT, CHECKOUT / "scripts")
"""Folders with `hetero_hvd`, `tests.kit` and `benchmarks`."""


def python_path() -> str:
    """PYTHONPATH with which a process finds them, on a host of its own too; ours goes on."""
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([*map(str, PACKAGES), *filter(None, ours)]))


def variables(**more: str) -> dict[str, str]:
    """The environment of a process on this machine.

    Args:
        more: Further variables.
    """
    return os.environ | {"PYTHONPATH": python_path()} | more
