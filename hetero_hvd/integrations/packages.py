"""What each integration needs, and with which versions of it the tests pass."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from hetero_hvd.errors import MissingPackageError
from hetero_hvd.probes.training_packages import require_training

logger = logging.getLogger(__name__)


class Packages:
    """What an integration needs, and was tested with.

    Args:
        name: Of the integration, which is that of the extra, too.
        original: What it takes the place of.
        tested: Package to the version, without its last number, with which the tests pass.
    """

    def __init__(self, name: str, original: str, tested: Mapping[str, str]) -> None:
        self.tested = tested
        self._name = name
        self._original = original
        self._has_warned = False

    def __str__(self) -> str:
        return " and ".join(f"{name} {tested}" for name, tested in self.tested.items())

    def require(self) -> None:
        """Refuse what cannot work without these packages.

        Raises:
            MissingPackageError: One of them is not installed, or torch or Horovod is not.
        """
        module = f"hetero_hvd.integrations.{self._name}"
        require_training(module)
        missing = [name for name in self.tested if installed(name) is None]
        if missing:
            raise MissingPackageError(
                f"{module} needs {' and '.join(missing)}, not installed in "
                f"{sys.prefix}: pip install 'hetero_hvd[{self._name}]'"
            )

    def warn(self) -> None:
        """Say once which packages are of another version than the tested one."""
        if self._has_warned:
            return
        self._has_warned = True
        for name, tested in self.tested.items():
            found = installed(name) or ""
            if not f"{found}.".startswith(f"{tested}."):
                logger.warning(
                    "%s %s is installed, and this integration was tested with %s: if training "
                    "behaves differently from %s, install that version",
                    name,
                    found,
                    tested,
                    self._original,
                )


HUGGING_FACE = Packages(
    "huggingface", "transformers.Trainer", {"transformers": "5.23", "accelerate": "1.15"}
)
LIGHTNING = Packages("lightning", "plain Lightning", {"lightning": "2.6"})


def installed(name: str) -> str | None:
    """The version of a package; None: there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
