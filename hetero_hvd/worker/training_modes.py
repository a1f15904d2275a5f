"""The training modes that there are, and the one that a script is trained in."""

from __future__ import annotations

from hetero_hvd.messages.launch import SYNCHRONOUS, ModeName
from hetero_hvd.worker.reproducible.reproducible_mode import ReproducibleMode
from hetero_hvd.worker.step.training_mode import Script, TrainingMode
from hetero_hvd.worker.synchronous.synchronous_mode import SynchronousMode
from hetero_hvd.worker.wait_free.wait_free_mode import WaitFreeMode

MODES: dict[ModeName, type[TrainingMode]] = {
    mode.name: mode for mode in (SynchronousMode, ReproducibleMode, WaitFreeMode)
}


def open_mode(script: Script) -> TrainingMode:
    """The mode that script and job ask for.

    Raises:
        UserError: The script does not fit it.
    """
    return MODES[script.options.mode or SYNCHRONOUS](script)
