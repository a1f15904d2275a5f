"""Digests of the training state, kept so that two runs can be compared."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.kept_file import KeptFile
from hetero_hvd.messages.launch import WorkerLaunch
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.data.stateful import Stateful
from hetero_hvd.worker.recovery.replica import Replica

logger = logging.getLogger(__name__)

MAX_BYTES = 32 * 2**20
"""Of the file; what came before it is kept up to as much again."""


class Fingerprints:
    """The fingerprints of a run.

    Args:
        parts: Name to model, optimizer, position, …
        numerics: What bits depend on beside the script; empty: nothing is recorded, but `take`
            works.
        launch: The file, and how often; without a file nothing is recorded, either.
    """

    def __init__(
        self,
        parts: Mapping[str, Stateful],
        numerics: str,
        launch: WorkerLaunch,
    ) -> None:
        file = launch.fingerprints
        self._parts = {name: Replica({name: part}) for name, part in parts.items()}
        self._file = self._kept(file) if file and numerics else None
        self._every = launch.job.fingerprint_steps
        self._results: list[dict[str, Any]] = []
        self._numerics = numerics

    def add(self, name: str, part: Stateful) -> None:
        """One more part."""
        self._parts[name] = Replica({name: part})

    @staticmethod
    def _kept(file: str) -> KeptFile:
        return KeptFile(Path(file), logger.error, max_bytes=MAX_BYTES)

    def take(self) -> str:
        """The digest of all parts; 32 hexadecimal digits."""
        return _joined(self._digests())

    def evaluated(self, position: Position, number: int, result: Mapping[str, float]) -> None:
        """Keep a result for the next line.

        Args:
            position: Where training stands.
            number: Which evaluation since the last applied step, from 1.
            result: Name to mean.
        """
        if self._file is not None:
            step = position.applied_steps
            self._results.append({"step": step, "number": number, "metrics": dict(result)})

    def step_done(self, position: Position, *, is_leader: bool) -> None:
        """Record if it is time; the leader writes."""
        if self._every and position.applied_steps % self._every == 0:
            self._record(position, is_epoch=False, is_leader=is_leader)

    def epoch_done(self, position: Position, *, is_leader: bool) -> None:
        """Record; the leader writes."""
        self._record(position, is_epoch=True, is_leader=is_leader)

    def close(self) -> None:
        """That was all for now."""
        if self._file is not None:
            self._file.close()

    def _digests(self) -> dict[str, str]:
        return {name: replica.checksum() for name, replica in self._parts.items()}

    def _record(self, position: Position, *, is_epoch: bool, is_leader: bool) -> None:
        results, self._results = self._results, []
        if self._file is None or not is_leader:
            return
        parts = self._digests()
        facts: dict[str, Any] = {
            "epoch": position.epoch,
            "step": position.applied_steps,
            "is_epoch": is_epoch,
            "fingerprint": _joined(parts),
            "loss": position.loss,
            "parts": parts,
            "evaluations": results,
            "numerics": self._numerics,
        }
        self._file.append(msgspec.json.encode(facts) + b"\n")


def _joined(parts: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:32]
