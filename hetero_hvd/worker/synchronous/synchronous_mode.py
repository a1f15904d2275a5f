"""The synchronous mode: each worker computes its share, and all shares together are a step."""

from __future__ import annotations

from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.step.training_mode import TrainingMode
from hetero_hvd.worker.synchronous.synchronous_step import SynchronousStep


class SynchronousMode(TrainingMode):
    """What is trained in unless a script or its job asks for another mode."""

    name = "synchronous"

    def make_step(self, loader: ShareLoader) -> SynchronousStep:
        """Steps that reduce gradients while they are computed."""
        return SynchronousStep(self._script, loader, self.staleness)
