"""What Hugging Face's trainer keeps beside model and optimizer: copied to workers that join."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState

if TYPE_CHECKING:
    from hetero_hvd.integrations.huggingface.trainer import HuggingFaceTrainer

DECISIVE = ("epoch", "global_step", "best_metric", "best_global_step")
"""Fields of `TrainerState` that are equal on all workers and that decide what happens next."""

LOGS = ("log_history", "total_flos", "num_input_tokens_seen")
"""Fields of `TrainerState` that are only told: times, and what a worker logs of its own part."""


class TrainingProgress:
    """How far training is, what the callbacks have decided, and what the loss is since it was told.

    The same on all workers after each step.

    Args:
        trainer: Whose.
    """

    def __init__(self, trainer: HuggingFaceTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        trainer = self._trainer
        return {
            "state": {name: getattr(trainer.state, name) for name in DECISIVE},
            "best_model_checkpoint": self._best_folder(),
            "control": trainer.control.state()["args"],
            "callbacks": [[type(each).__name__, each.state()] for each in self._callbacks()],
            "running": trainer.running_totals(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over what another worker has."""
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        best = state["best_model_checkpoint"]
        trainer.state.best_model_checkpoint = best and str(self._output / best)
        for name, value in state["control"].items():
            setattr(trainer.control, name, value)
        for callback, (kind, found) in zip(self._callbacks(), state["callbacks"], strict=False):
            if type(callback).__name__ == kind:
                vars(callback).update(found["attributes"])
        trainer.set_running_totals(state["running"])

    def _best_folder(self) -> str | None:
        """Relative to the output folder, which may be elsewhere on another node."""
        best = self._trainer.state.best_model_checkpoint
        return best and os.path.relpath(best, self._output)

    @property
    def _output(self) -> Path:
        return Path(self._trainer.args.output_dir or "")

    def _callbacks(self) -> Iterator[ExportableState]:
        callbacks = self._trainer.callback_handler.callbacks
        return (each for each in callbacks if isinstance(each, ExportableState))


class Logs:
    """What has been logged; each worker's may differ, as a script may log of its own part.

    Args:
        trainer: Whose.
    """

    may_differ = True

    def __init__(self, trainer: HuggingFaceTrainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {name: getattr(self._trainer.state, name) for name in LOGS}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over what another worker has."""
        for name, value in state.items():
            setattr(self._trainer.state, name, value)
