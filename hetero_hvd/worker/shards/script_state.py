"""The state of the script's optimizer: its own until the workers have met, then in parts."""

from __future__ import annotations

from typing import Any

import torch

from hetero_hvd.errors import UserError


class ScriptState:
    """Asks for it, and tells a script that does so too late.

    Args:
        optimizer: The script's.

    Attributes:
        is_in_parts: Whether the optimizer itself has none any more.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._is_asking = False
        self.is_in_parts = False
        optimizer.register_state_dict_pre_hook(self._check_whole)

    @property
    def is_filled(self) -> bool:
        """Whether the optimizer has some state of its own."""
        return any(self._optimizer.state.values())

    def read(self) -> dict[str, Any]:
        """What the optimizer gives as its state dict."""
        self._is_asking = True
        try:
            return self._optimizer.state_dict()
        finally:
            self._is_asking = False

    def _check_whole(self, _: torch.optim.Optimizer) -> None:
        """A script would keep, or go on with, a state without contents.

        Raises:
            UserError: It lies in parts.
        """
        if self.is_in_parts and not self._is_asking:
            raise UserError(
                "shard_optimizer: the optimizer's state lies in parts on the workers: read it from "
                "a checkpoint of the job in place of optimizer.state_dict(), and give each further "
                "trainer an optimizer of its own"
            )
