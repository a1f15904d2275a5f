"""Hugging Face's Trainer on workers of unequal speed: the same arguments, another import."""

from __future__ import annotations

from hetero_hvd.integrations.packages import HUGGING_FACE

HUGGING_FACE.require()

from hetero_hvd.integrations.huggingface.trainer import (  # noqa: E402 - once it is there
    HuggingFaceTrainer as Trainer,
)

__all__ = ["Trainer"]
