"""The wait-free mode: no plan; a step holds what each worker got done until the one before it."""

from __future__ import annotations

from torch.utils.data import IterableDataset

from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.training_mode import Script, TrainingMode
from hetero_hvd.worker.wait_free.round_step import RoundStep
from hetero_hvd.worker.wait_free.rounds import ChunkRounds

CHUNKS_PER_ROUND = 16
"""So that a worker of a sixteenth of the cluster's speed still takes part in each round."""


class WaitFreeMode(TrainingMode):
    """Rounds of chunks. They are at least one step late, from the first one on."""

    name = "wait_free"
    shares_vary = True

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        if isinstance(script.loader.dataset, IterableDataset):
            raise UserError("wait_free: an IterableDataset cannot be read from any position")
        if script.sampling.is_batched:
            raise UserError(
                "wait_free: the batches of a batch_sampler would be cut into chunks: give the "
                "loader a batch_size, or train in another mode"
            )
        self.staleness = Staleness(max(1, self.staleness.bound))

    def make_step(self, loader: ShareLoader) -> RoundStep:
        """Steps that take chunks of `micro_batch_size` samples, else of a part of the batch."""
        size = self._script.options.micro_batch_size
        if not isinstance(size, int):
            size = max(1, loader.global_batch_size // CHUNKS_PER_ROUND)
        rounds = ChunkRounds(loader, size, self.staleness.bound)
        return RoundStep(self._script, rounds, self.staleness)
