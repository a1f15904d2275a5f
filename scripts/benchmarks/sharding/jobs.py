"""What is trained in this room, and what comes of it."""

from __future__ import annotations

import msgspec


class DeepJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to train.

    Attributes:
        width: Of each layer, which has so many times so many parameters.
        depth: Layers.
        num_steps: So many.
        batch: Samples in a step.
        dtype: Of parameters and gradients: `float32` with AdamW, `bfloat16` with float32 masters.
        shards: Whether the optimizer's state lies in parts.
        balances: Whether shares follow the workers' speeds.
        cut: Layers in the first of two stages; of pipelines only.
        num_micro_batches: Of pipelines only.
        schedule: Of pipelines only: `GPipe` or `1F1B`.
    """

    width: int
    depth: int
    num_steps: int
    batch: int = 6
    dtype: str = "float32"
    shards: bool = False
    balances: bool = False
    cut: int = 0
    num_micro_batches: int = 1
    schedule: str = ""


class DeepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank found.

    Attributes:
        num_parameters: Of the whole model.
        step_seconds: Of each step but the first.
        sent_bytes: By this worker in each step, on average, as rings send them.
        num_copies: Of each part of the optimizer's state at its end; 0: it is not in parts.
        own_bytes: That this process has to itself at its end, without files.
    """

    num_parameters: int
    step_seconds: list[float]
    sent_bytes: float = 0.0
    num_copies: int = 0
    own_bytes: int = 0
