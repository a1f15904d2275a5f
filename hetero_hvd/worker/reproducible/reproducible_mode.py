"""The reproducible mode: the same bits however the global batch is divided."""

from __future__ import annotations

from hetero_hvd.worker.data.seeding import Seeds
from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.reproducible.grain_step import GrainStep
from hetero_hvd.worker.reproducible.requirements import settle
from hetero_hvd.worker.step.training_mode import Script, TrainingMode


class ReproducibleMode(TrainingMode):
    """Grains with seeds of their own, added up without an order.

    Switches torch to deterministic algorithms, for the whole process.
    """

    name = "reproducible"
    needs_equal_models = True

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._settings = settle(script)
        self.grain = self._settings.grain
        self._numerics = self._settings.numerics(script.model)

    def make_step(self, loader: ShareLoader) -> GrainStep:
        """Steps that compute and add up grain by grain."""
        return GrainStep(self._script, loader, self._settings)

    @property
    def numerics(self) -> str:
        """Hardware, versions, switches, and how grains are computed and added up."""
        return self._numerics

    def seeds(self, epoch: int, step_in_epoch: int) -> Seeds:
        """Those of the run's seed."""
        return Seeds(self._script.seed, epoch, step_in_epoch)
