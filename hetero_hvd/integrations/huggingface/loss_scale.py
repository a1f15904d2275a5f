"""The scale of float16's losses: the same on all workers of a job, whatever their devices are.

accelerate makes a scaler for a GPU alone. A worker on a CPU, which computes in single precision as
in plain transformers, would then add gradients to those of others that are 65536 times as large.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from hetero_hvd.worker.session.worker_context import device


class ScalingTrainer(transformers.Trainer):
    """Scales losses alike on all workers of a job; see `HuggingFaceTrainer`."""

    accelerator: Any
    _is_alone: bool

    def create_accelerator_and_postprocess(self) -> None:
        """As in transformers; a job has a scaler on each worker, for that one's device.

        A process alone is as without us: on a CPU it has none.
        """
        super().create_accelerator_and_postprocess()
        accelerator = self.accelerator
        if accelerator.mixed_precision != "fp16" or self._is_alone:
            return
        handler = accelerator.scaler_handler
        options = {} if handler is None else handler.to_kwargs()
        accelerator.scaler = torch.amp.GradScaler(device().type, **options)

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        """Accelerate's, which transformers saves and loads; None where nothing is scaled."""
        found: torch.amp.GradScaler | None = getattr(self.accelerator, "scaler", None)
        return found if found is not None and found.is_enabled() else None

    @property
    def _loss_scale(self) -> float:
        """Factor of the gradients at this moment; 0 where nothing is scaled."""
        return 0.0 if self._scaler is None else float(self._scaler.get_scale())

    def _load_scaler(self, checkpoint: str | None) -> None:
        """As in transformers, which fails where there is a file of one and no scaler."""
        if self._scaler is not None:
            super()._load_scaler(checkpoint)
