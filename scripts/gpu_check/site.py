"""Where the checks run: the device, the Python, the time that is left; and what a check gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

CHECKOUT = Path(__file__).resolve().parents[2]
PLACE = CHECKOUT / ".gpu-check"
PACKAGES = PLACE / "packages"
VENV = PLACE / "venv"
SCRIPTS = CHECKOUT / "scripts"

LEASES_FOLDER = "HETERO_HVD_LEASES_FOLDER"
"""Variable: where the product's programs on a node lock the devices that they use."""

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""As in setup.py; the standard library alone does not tell."""

PART_SECONDS = 480.0
"""Limit of one part."""

WHOLE_SECONDS = 1200.0
"""Limit of all parts of one command."""

RUN_SECONDS = 200.0
"""Limit of one training in it."""


class CheckError(Exception):
    """A check found what should not be; the text says what."""


class Skipped(Exception):  # noqa: N818 - no error
    """A check cannot be made here; the text says why."""


class Figure(NamedTuple):
    """What a check has measured.

    Attributes:
        value: The number that counts.
        unit: What it is.
        facts: What else was seen, ready for JSON.
    """

    value: float
    unit: str
    facts: dict[str, Any]


def fail(message: str) -> NoReturn:
    """One line, exit code 2."""
    print(f"scripts/gpu-check: {message}", file=sys.stderr)
    sys.exit(2)


@dataclass
class Site:
    """The machine and this run of a part.

    Attributes:
        device: `cuda`, `xpu` or `cpu`: what the worker called `card` computes on.
        python: Interpreter with torch, Horovod and hetero_hvd; empty before `install`.
        began_at: When the part began, `time.monotonic`.
        ends_at: When the whole has to end.
    """

    device: str
    python: str
    began_at: float = field(default_factory=time.monotonic)
    ends_at: float = float("inf")

    @property
    def has_card(self) -> bool:
        """Whether there is an accelerator."""
        return self.device != "cpu"

    @property
    def left_seconds(self) -> float:
        """Of the part, or of the whole."""
        return min(self.began_at + PART_SECONDS, self.ends_at) - time.monotonic()

    def folder(self, name: str) -> Path:
        """An empty folder for what a run leaves."""
        folder = PLACE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def run(
        self,
        command: list[str],
        *,
        log: Path,
        seconds: float = RUN_SECONDS,
        expected_code: int | None = 0,
        **environment: str,
    ) -> str:
        """Run a command to its end; what it printed, which the log has too.

        It asks leases of this process alone: several parts may have one card at the same time.

        Raises:
            CheckError: It ended with another code than expected (None: any), or took too long.
        """
        limit = min(seconds, self.left_seconds)
        leases = {LEASES_FOLDER: str(PLACE / f"leases-{os.getpid()}")}
        with log.open("w") as file:
            try:
                code = subprocess.run(
                    command,
                    cwd=CHECKOUT,
                    env=os.environ | {"PATH": path_of(self.python)} | leases | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=max(1.0, limit),
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise CheckError(f"took more than {limit:.0f} s: see {log}") from error
        printed = log.read_text(errors="replace")
        if expected_code not in (None, code):
            last = "".join(printed.strip().splitlines()[-1:])
            raise CheckError(f"exit code {code}: {last}; see {log}")
        return printed


@dataclass(frozen=True)
class Check:
    """One question to the product.

    Attributes:
        run: Answers it.
        needs_card: Whether the answer says anything only where there is an accelerator.
        about: What is asked, for the table.
    """

    run: Callable[[Site], Figure]
    about: str
    needs_card: bool = False


def path_of(python: str) -> str:
    """PATH with an interpreter's folder in front."""
    known = os.environ.get("PATH", os.defpath)
    return f"{Path(python).parent}{os.pathsep}{known}" if python else known


def at_most(value: float, limit: float, what: str) -> None:
    """Fail if a figure is above its limit, or no number."""
    if not value <= limit:
        raise CheckError(f"{what}: {value:.4g}, must be at most {limit:g}")


def at_least(value: float, limit: float, what: str) -> None:
    """Fail if a figure is below its limit, or no number."""
    if not value >= limit:
        raise CheckError(f"{what}: {value:.4g}, must be at least {limit:g}")


def skip_without(site: Site, package: str) -> None:
    """Go on if the Python of the checks has it.

    Raises:
        Skipped: It has not.
    """
    log = site.folder(f"{package}-package") / "printed"
    printed = site.run([site.python, "-c", f"import {package}"], log=log, expected_code=None)
    if printed.rstrip().endswith(f"No module named '{package.partition('.')[0]}'"):
        raise Skipped(f"no {package} here")
