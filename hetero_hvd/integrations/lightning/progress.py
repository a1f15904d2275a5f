"""What Lightning keeps beside model and optimizer: copied to workers that join."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop

from hetero_hvd.integrations.lightning.results import entries_of, put_entries

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from hetero_hvd.integrations.lightning.fit import Fit

TRACKED = ("ready", "started", "processed")
"""Counters of Lightning's that run ahead of `completed` while something is under way."""


def settled(state: Any) -> Any:  # noqa: ANN401 - plain data in any nesting
    """A loop's state with what is under way left out: the same on all workers between two steps."""
    if not isinstance(state, dict):
        return state
    found = {name: settled(value) for name, value in state.items()}
    if "completed" in found:
        found |= {name: found["completed"] for name in TRACKED if name in found}
    return found


def go_on(loop: _Loop) -> None:
    """A loop's state was loaded: it goes on, and does nothing of what a restart does."""
    loop._restarting = loop._loaded_from_state_dict = False
    loop._resuming_from_checkpoint = False
    loop.reset_restart_stage()
    for inner in vars(loop).values():
        if isinstance(inner, _Loop):
            go_on(inner)


class LoopProgress:
    """How far Lightning's loops are, and whether something has asked to stop.

    The same on all workers after each step.

    Args:
        trainer: Lightning's.
        fit: Forgets the step that it has begun, when others have taken it.
    """

    def __init__(self, trainer: Trainer, fit: Fit) -> None:
        self._trainer = trainer
        self._fit = fit

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        loops = settled(self._trainer.fit_loop.state_dict())
        loops["state_dict"] = {}  # what a loader keeps: ours goes by position
        return {"loops": loops, "should_stop": self._trainer.should_stop}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over what another worker has."""
        loop = self._trainer.fit_loop
        loop.load_state_dict(deepcopy(state["loops"]))
        go_on(loop)
        self._trainer.should_stop = state["should_stop"]
        self._fit.forget_step()


class CallbacksAndLogs:
    """What callbacks and logs have come to; each worker's may differ, as it may log its own part.

    Args:
        trainer: Lightning's.
        fit: Whose module has the metric objects.
    """

    may_differ = True

    def __init__(self, trainer: Trainer, fit: Fit) -> None:
        self._trainer = trainer
        self._fit = fit

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        trainer = self._trainer
        connector = trainer._logger_connector
        return {
            "folders": [each.dirpath for each in self._checkpoint_callbacks()],
            "versions": [getattr(each, "version", None) for each in trainer.loggers],
            "callbacks": [[_key(each), each.state_dict()] for each in self._callbacks()],
            "metrics": dict(connector._callback_metrics),
            "logged": entries_of(self._fit.results),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over what another worker has."""
        trainer = self._trainer
        for keeper, folder in zip(self._checkpoint_callbacks(), state["folders"], strict=False):
            keeper.dirpath = folder
        for logger, version in zip(trainer.loggers, state["versions"], strict=False):
            if hasattr(logger, "_version"):
                logger._version = version
        found = dict(state["callbacks"])
        for callback in self._callbacks():
            if found.get(_key(callback)):
                callback.load_state_dict(deepcopy(found[_key(callback)]))
        connector = trainer._logger_connector
        connector._callback_metrics = dict(state["metrics"])
        results = self._fit.results
        results.clear()
        results.drop()
        put_entries(results, [state["logged"]], self._fit.metrics.find, self._fit.device)

    def _callbacks(self) -> list[Callback]:
        return self._trainer.callbacks  # type: ignore[attr-defined, no-any-return]

    def _checkpoint_callbacks(self) -> list[ModelCheckpoint]:
        return [each for each in self._callbacks() if isinstance(each, ModelCheckpoint)]


def _key(callback: Callback) -> str:
    return callback.state_key
