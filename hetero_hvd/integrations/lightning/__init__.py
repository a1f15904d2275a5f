"""Lightning on workers of unequal speed: the same Trainer and LightningModule, our strategy."""

from __future__ import annotations

from hetero_hvd.integrations.packages import LIGHTNING

LIGHTNING.require()

from hetero_hvd.integrations.lightning.strategy import HeteroStrategy  # noqa: E402 - once there

__all__ = ["HeteroStrategy"]
