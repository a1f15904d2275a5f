"""The generators of random numbers that a script is likely to use."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from hetero_hvd.worker import accelerator


def randomness() -> dict[str, Any]:
    """The state of every generator that a script is likely to use."""
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the one scripts use
    state = {
        "python": [version, list(words), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if states := accelerator.random_states():
        state["accelerators"] = states
    return state


def restore_randomness(state: dict[str, Any]) -> None:
    """Let all go on from a state that `randomness` gave; an empty one changes nothing."""
    if not state:
        return
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    accelerator.restore_random_states(state.get("accelerators", []))
