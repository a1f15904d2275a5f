"""A step that grows chunk by chunk until its round is closed: see `worker.wait_free.rounds`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.step.in_flight import ExchangeTrigger, InFlightStep, no_trigger
from hetero_hvd.worker.step.staleness import Staleness
from hetero_hvd.worker.step.step import Step


class RoundStep(Step):
    """The rounds of one model; each is as large as it became.

    A sample counts the same whichever worker takes it: gradients are summed with their weights and
    divided by the sum of all weights. The learning rate is scaled for each round, as its size
    differs from the batch size that the script has chosen it for.

    Args:
        model: The user's model.
        optimizer: The user's optimizer.
        options: How to take a step.
        device: Where the model is.
        staleness: How many rounds may be under way.

    Attributes:
        num_samples: Of this worker in the round that is being computed.
        num_chunks: The same, in chunks.
        round_samples: Samples of all workers in the last round that was reduced.
        counts: Chunks that each worker took in it, in rank order.

    Raises:
        UserError: The model has layers that meet the other workers.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        options: StepOptions,
        device: torch.device,
        staleness: Staleness,
    ) -> None:
        super().__init__(model, optimizer, options, device, staleness)
        if self.rounds.is_needed:
            raise UserError(
                "wait_free: layers that normalise over all workers would wait for them: use "
                "torch's BatchNorm, or leave out wait_free"
            )
        self._exponent = _lr_exponent(options.wait_free_lr, optimizer)
        self._is_open = False
        self._chunk_end: torch.cuda.Event | None = None
        self.num_samples = self.num_chunks = 0
        self.round_samples = 0
        self.counts: tuple[int, ...] = ()

    def begin(self, collective: Collective, part: Slice) -> None:
        """Go on with the round, or start one."""
        if self._is_open:
            self._slice = part
            return
        super().begin(collective, part)
        self._is_open = True

    def chunk_done(self) -> None:
        """The part that was begun is computed."""
        num_samples = self._current().num_samples
        self.num_samples += num_samples
        self.num_chunks += num_samples > 0
        if self._device.type == "cuda":
            self._keep_pace()
        if self.emulation is not None:
            with self.clock.phase("backward"):
                self.emulation.hold(self._began_at, self.num_samples, is_last=False)

    def _keep_pace(self) -> None:
        """Let the device have one chunk ahead, no more: what is counted has to be computed."""
        before, self._chunk_end = self._chunk_end, torch.cuda.Event()
        self._chunk_end.record(torch.cuda.current_stream(self._device))
        if before is not None:
            with self.clock.phase("backward"):
                before.synchronize()

    def try_smaller(self) -> bool:
        """Memory does not suffice: the chunks of this round are computed again, in smaller pieces.

        What they had added to the gradients cannot be told from what the failed one has added.
        """
        self.num_samples = self.num_chunks = 0
        self.has_restarted = super().try_smaller()
        return self.has_restarted

    def launch(self, collective: Collective, urgency: ExchangeTrigger = no_trigger) -> int:
        """Submit what this worker has added to the round; see `Step.launch`."""
        self._slice = self._current()._replace(num_samples=self.num_samples)
        num_samples = super().launch(collective, urgency)
        self._close()
        return num_samples

    def land(self, collective: Collective) -> float:
        """Wait for the oldest round under way, and apply it; see `Step.land`.

        A round without samples changes nothing.
        """
        flight: InFlightStep = self.in_flight[0]
        loss = super().land(collective)
        samples, *counts = (round(value) for value in flight.totals[3:-2].tolist())
        self.round_samples = samples
        self.counts = tuple(counts)
        return loss

    def put_back(self) -> None:
        """Drop the round that was begun."""
        self._close()
        super().put_back()

    def _close(self) -> None:
        self._is_open = False
        self.num_samples = self.num_chunks = 0

    def _contribute(self, mean: torch.Tensor, weight: float) -> None:
        """Backward without a reduction: more may follow."""
        self._differentiate(mean * (weight / self._current().global_samples))

    def _own_counts(self) -> Sequence[float]:
        counts = [0.0] * self._collective.size
        counts[self._collective.rank] = float(self.num_chunks)
        return (float(self.num_samples), *counts)

    @property
    def _may_take_again(self) -> bool:
        return False

    def _apply(self, flight: InFlightStep, weight: float) -> None:
        samples = float(flight.totals[3])
        if not samples:
            return
        size_ratio = samples / flight.part.global_samples
        flight.gradients.publish(self._factor(flight, weight))
        self._buffers.publish(flight.buffers, samples)
        self._update.apply(self._reducer.parameters, size_ratio**self._exponent)


def _lr_exponent(rule: str, optimizer: torch.optim.Optimizer) -> float:
    """How the learning rate grows with the size of a round.

    Linear for plain gradients (Goyal et al., Accurate, Large Minibatch SGD, 2017), as the square
    root for those that are divided by their own size (Malladi et al., On the SDEs and Scaling Rules
    for Adaptive Gradient Algorithms, NeurIPS 2022).
    """
    if rule == "auto":
        rule = "sqrt" if "betas" in optimizer.defaults else "linear"
    return {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[rule]
