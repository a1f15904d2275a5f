"""Which training mode is used: the list of those that there are, and the choice between them."""

from __future__ import annotations

from hetero_hvd.errors import UserError
from hetero_hvd.worker.reproducible.reproducible_mode import ReproducibleMode
from hetero_hvd.worker.step.training_mode import Script, TrainingMode
from hetero_hvd.worker.synchronous.synchronous_mode import SynchronousMode
from hetero_hvd.worker.wait_free.wait_free_mode import WaitFreeMode

OPTIONAL: tuple[type[TrainingMode], ...] = (ReproducibleMode, WaitFreeMode)
"""The modes that a script or its job has to ask for; at most one of them."""


def choose_mode(script: Script) -> TrainingMode:
    """The mode that script and job ask for; the synchronous one if they ask for none.

    Raises:
        UserError: They ask for several, or for one that the script does not fit.
    """
    asked = [mode for mode in OPTIONAL if mode.is_asked_for(script.options)]
    for mode in asked[1:]:
        raise UserError(f"{asked[0].name}: {mode.name} must be off: {mode.nature}")
    return asked[0](script) if asked else SynchronousMode(script)
