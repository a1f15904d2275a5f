"""What the wheel of `scripts/setup` says about the Horovod that is installed."""

from __future__ import annotations

import importlib.metadata
import re


def corrections() -> tuple[str, ...]:
    """Names of our corrections that are in it; empty for a stock Horovod, and for none."""
    found = re.findall(r"^correction (\S+):", _notice(), re.MULTILINE)
    return tuple(dict.fromkeys(found))  # one that changes several places is named for each


def built_for_torch() -> str | None:
    """Version of torch that it was compiled against; None if unknown."""
    found = re.search(r"^built for torch (\S+)$", _notice(), re.MULTILINE)
    return found[1] if found else None


def _notice() -> str:
    try:
        wheel = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return wheel.read_text("licenses/NOTICE.hetero_hvd") or ""
