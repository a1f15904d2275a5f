"""Keeps the running statistics of normalisation layers the same on all workers.

Each worker's running mean is `(1 - m) * old + m * own mean`; averaged with the samples as weights
this is the running mean of the joined batch, exactly (it is linear). The running variance becomes
the mean of the workers' variances: what PyTorch's gradient accumulation gives too.
"""

from __future__ import annotations

import torch

from hetero_hvd.worker.collective import Collective, Handle


class BufferSum:
    """The buffers of one step on their way.

    Args:
        flat: Where the sum arrives, float64.
        handle: Of the reduction.
    """

    def __init__(self, flat: torch.Tensor, handle: Handle) -> None:
        self.flat, self.handle = flat, handle


class BufferAverage:
    """Averages a model's persistent floating-point buffers, weighted by samples, in every step.

    Args:
        model: Its buffers are read when the reduction starts and written when it is applied.
        as_changes: Reduce what the step has changed rather than what it has arrived at, and leave
            the buffers unchanged until then: for steps that begin before the last one is applied.
    """

    def __init__(self, model: torch.nn.Module, *, as_changes: bool = False) -> None:
        self._model = model
        self._as_changes = as_changes
        self._before: list[torch.Tensor] = []
        self._names = _averaged(model)

    def remember(self) -> None:
        """Keep the buffers as they are before a step's forward passes change them."""
        self._before = [buffer.detach().clone() for buffer in self._buffers()]

    def restore(self) -> None:
        """Undo what forward passes did since `remember`: their step was not applied."""
        with torch.no_grad():
            for buffer, before in zip(self._buffers(), self._before, strict=False):
                buffer.copy_(before)
        self._before = []

    def launch(self, collective: Collective, weight: float, lane: int = 0) -> BufferSum | None:
        """Start the reduction.

        Args:
            collective: The rendezvous.
            weight: Share of the global batch's samples that this worker's statistics have seen, 0
                to 1.
            lane: Part of its name; see `Reducer.prepare`.

        Returns:
            None where there is nothing to reduce: `publish` has nothing to do then.
        """
        buffers = self._buffers()
        alone = collective.size == 1 and not self._as_changes
        if not buffers or alone:
            return None
        flat = _joined(buffers)
        if self._as_changes:
            flat -= _joined(self._before)
            self.restore()
        flat.mul_(weight)
        return BufferSum(flat, collective.sum_async(flat, f"buffers.{lane}"))

    def publish(self, average: BufferSum | None, factor: float = 1.0) -> None:
        """Write the averages into the buffers, or add the changes to them.

        Args:
            average: What `launch` gave.
            factor: For changes whose weights do not sum to 1: their sum's inverse.
        """
        self._before = []
        if average is None:
            return
        offset = 0
        with torch.no_grad():
            for buffer in self._buffers():
                values = average.flat[offset : offset + buffer.numel()].view_as(buffer)
                if self._as_changes:
                    values = values * factor + buffer.detach().to("cpu", torch.float64)
                buffer.copy_(values if buffer.is_floating_point() else values.round())
                offset += buffer.numel()

    def _buffers(self) -> list[torch.Tensor]:
        return [b for name, b in self._model.named_buffers() if name in self._names]


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().to("cpu", torch.float64).flatten() for tensor in tensors])


def _averaged(model: torch.nn.Module) -> set[str]:
    persistent = model.state_dict().keys()
    return {
        name
        for name, buffer in model.named_buffers()
        if name in persistent
        and (buffer.is_floating_point() or name.endswith("num_batches_tracked"))
    }
