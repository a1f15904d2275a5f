"""The collective operations of a script that runs alone: see `collective.Collective`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hetero_hvd.probes.laps import Laps
from hetero_hvd.worker.comm.operation_log import OperationLog

Handle = Any


class SingleProcess:
    """One worker, no Horovod: every operation is the identity."""

    rank = 0
    size = 1
    generation = 0

    def __init__(self) -> None:
        self.operations = OperationLog()
        self.laps = Laps()

    def start(self) -> None:
        """Nobody to meet."""

    def restart(self) -> None:
        """Nobody to meet."""

    def stop(self) -> None:
        """Nobody to leave."""

    def cut(self, generation: int | None = None) -> None:
        """Nothing to wait for."""

    def sum_async(self, tensor: torch.Tensor, name: str) -> Handle:  # noqa: ARG002
        """The sum of one tensor is itself."""
        return tensor

    def gather_rows_async(self, rows: torch.Tensor, name: str) -> Handle:  # noqa: ARG002
        """The rows of one worker are its own."""
        return rows.clone()

    def wait(self, handle: Handle) -> torch.Tensor:
        """Already there."""
        tensor: torch.Tensor = handle
        return tensor

    def is_done(self, handle: Handle) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def start_staged(self) -> None:
        """Nothing has to travel."""

    def broadcast(self, tensor: torch.Tensor, root: int, name: str) -> None:
        """Everybody has it."""

    def exchange(self, rows: torch.Tensor, counts: Sequence[int], name: str) -> torch.Tensor:  # noqa: ARG002
        """What it sends itself."""
        return rows.clone()
