"""The synchronous mode: each worker computes its share, and all shares together are a step."""

from __future__ import annotations

from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.step.training_mode import TrainingMode
from hetero_hvd.worker.synchronous.synchronous_step import SynchronousStep


class SynchronousMode(TrainingMode):
    """What is trained in unless a script or its job asks for another mode."""

    name = "synchronous"
    nature = "a step is what the plan makes it"

    @classmethod
    def is_asked_for(cls, options: StepOptions) -> bool:  # noqa: ARG003 - it needs no option
        """Always, if no other one is."""
        return True

    def make_step(self, loader: ShareLoader) -> SynchronousStep:
        """Steps that reduce gradients while they are computed."""
        script = self._script
        return SynchronousStep(
            script.model,
            script.optimizer,
            script.options,
            script.device,
            sizing=script.sizing(),
            loader=loader,
            staleness=self.staleness,
        )
