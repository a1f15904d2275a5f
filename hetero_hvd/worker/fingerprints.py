"""Digests of the training state, kept so that two runs can be compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.worker.position import Position
from hetero_hvd.worker.replica import Replica, Stateful
from hetero_hvd.worker.reproducible import Reproducible

FILE_VARIABLE = "HETERO_HVD_FINGERPRINTS"
"""File that rank 0 appends to; set by the driver to fingerprints.jsonl in the run's output."""

STEPS_VARIABLE = "HETERO_HVD_FINGERPRINT_STEPS"
"""Also after every so many steps; 0 or unset: after each epoch only."""


class Fingerprints:
    """The fingerprints of a run.

    Args:
        parts: Name to model, optimizer, position, …
        mode: None: nothing is recorded, but `take` works.
        variables: The process's environment.
    """

    def __init__(
        self,
        parts: Mapping[str, Stateful],
        mode: Reproducible | None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        found = os.environ if variables is None else variables
        self._parts = {name: Replica({name: part}) for name, part in parts.items()}
        file = found.get(FILE_VARIABLE)
        self._file = Path(file) if file and mode is not None else None
        self._every = int(found.get(STEPS_VARIABLE) or 0)
        self._numerics = "" if mode is None else mode.numerics

    def take(self) -> str:
        """The digest of all parts; 32 hexadecimal digits."""
        return _joined(self._digests())

    def step_done(self, position: Position) -> None:
        """Record if it is time."""
        if self._every and position.applied_steps % self._every == 0:
            self._record(position, is_epoch=False)

    def epoch_done(self, position: Position) -> None:
        """Record."""
        self._record(position, is_epoch=True)

    def _digests(self) -> dict[str, str]:
        return {name: replica.checksum() for name, replica in self._parts.items()}

    def _record(self, position: Position, *, is_epoch: bool) -> None:
        if self._file is None:
            return
        parts = self._digests()
        facts: dict[str, Any] = {
            "epoch": position.epoch,
            "step": position.applied_steps,
            "is_epoch": is_epoch,
            "fingerprint": _joined(parts),
            "loss": position.loss,
            "parts": parts,
            "numerics": self._numerics,
        }
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(facts) + b"\n")


def _joined(parts: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:32]
