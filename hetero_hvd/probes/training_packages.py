"""What training needs beyond the package itself: whether it is there, and how to get it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from hetero_hvd.errors import MissingPackageError

PACKAGES = ("torch", "horovod")
"""Not among the requirements of the package: Horovod has to be built for the installed torch."""

_SETUP = Path(__file__).parents[2] / "scripts" / "setup"


def setup_script() -> str:
    """What sets up an environment, as people find it from here."""
    return "scripts/setup" if _SETUP.is_file() else "scripts/setup of hetero_hvd's source"


def how_to_get(package: str) -> str:
    """What to do where a package is missing."""
    if _SETUP.is_file():
        return "run scripts/setup and use its .venv"
    if package not in PACKAGES:
        return f"pip install {package}"
    return (
        "pip install --find-links FOLDER 'hetero_hvd[train]', with a release's wheels in FOLDER; "
        "or run `hetero-hvd install` for this machine on one that can train"
    )


def require_training(what: str) -> None:
    """Refuse what cannot work without torch and Horovod.

    Args:
        what: Begins the sentence.

    Raises:
        MissingPackageError: One of them is not installed.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"{what} needs {' and '.join(missing)}, not installed in {sys.prefix}: "
            f"{how_to_get(missing[0])}"
        )


def imported_when_asked(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package whose names need torch and Horovod: the rest works without.

    Args:
        package: Its name.
        homes: Name to the module that defines it.

    Returns:
        A function that gives what has a name. It raises AttributeError for an unknown one,
        MissingPackageError where torch or Horovod is not installed.
    """

    def found(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            missing = error
        require_training(f"{package}.{name}")
        raise missing

    return found
