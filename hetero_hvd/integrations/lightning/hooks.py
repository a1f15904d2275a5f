"""Whether anybody has written a hook: Lightning spends up to 50 microseconds on an empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.plugins import Precision

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Of the module and of its data module."""

CLIPPING = ("configure_gradient_clipping", "clip_gradients")
"""Of the module."""

PRECISION_CLIPPING = ("_after_closure", "_clip_gradients", "clip_gradients")
"""Of a precision plugin."""


def overrides(owner: object, base: type, *hooks: str) -> bool:
    """Whether any of some hooks is another one than that of Lightning's own class.

    Args:
        owner: Has the hooks, by its class or by itself.
        base: Lightning's class.
        hooks: Their names.
    """
    return any(
        getattr(getattr(owner, hook), "__func__", None) is not getattr(base, hook) for hook in hooks
    )


def changes_batches(trainer: Trainer) -> bool:
    """Whether anything but the device of a batch may become another one on its way there."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return overrides(trainer.lightning_module, LightningModule, *TRANSFER) or (
        data is not None and overrides(data, LightningDataModule, *TRANSFER)
    )


def changes_gradients(trainer: Trainer) -> bool:
    """Whether anything may be done to the gradients before an update."""
    return (
        bool(trainer.gradient_clip_val)
        or overrides(trainer.lightning_module, LightningModule, *CLIPPING)
        or overrides(trainer.precision_plugin, Precision, *PRECISION_CLIPPING)
    )
