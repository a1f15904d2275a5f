"""Keeps the running statistics of normalisation layers the same on all workers.

Each worker's running mean is `(1 - m) * old + m * own mean`; averaged with the samples as weights
this is the running mean of the joined batch, exactly (it is linear). The running variance becomes
the mean of the workers' variances: what PyTorch's gradient accumulation gives too.
"""

from __future__ import annotations

import torch

from hetero_hvd.worker.collective import Collective, Handle


class BufferAverage:
    """Averages a model's persistent floating-point buffers, weighted by samples, in every step.

    Args:
        model: Its buffers are read when the reduction starts and written when it is applied.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._handle: Handle = None
        self._flat = torch.empty(0, dtype=torch.float64)
        self._before: list[torch.Tensor] = []
        self._names = _averaged(model)

    def remember(self) -> None:
        """Keep the buffers as they are before a step's forward passes change them."""
        self._before = [buffer.detach().clone() for buffer in self._buffers()]

    def restore(self) -> None:
        """Undo what forward passes did since `remember`: their step was not applied."""
        with torch.no_grad():
            for buffer, before in zip(self._buffers(), self._before, strict=True):
                buffer.copy_(before)

    def launch(self, collective: Collective, weight: float) -> None:
        """Start the reduction.

        Args:
            collective: The rendezvous.
            weight: Share of the global batch's samples that this worker's statistics have seen, 0
                to 1.
        """
        buffers = self._buffers()
        self._handle = None
        if buffers and collective.size > 1:
            values = [buffer.detach().to("cpu", torch.float64).flatten() for buffer in buffers]
            self._flat = torch.cat(values).mul_(weight)
            self._handle = collective.sum_async(self._flat, "buffers")

    def wait(self, collective: Collective) -> None:
        """Block until it is done.

        Raises:
            Interrupted: It broke; the buffers are as before.
        """
        if self._handle is not None:
            collective.wait(self._handle)

    def publish(self) -> None:
        """Write the averages into the buffers."""
        if self._handle is None:
            return
        offset = 0
        with torch.no_grad():
            for buffer in self._buffers():
                values = self._flat[offset : offset + buffer.numel()].view_as(buffer)
                buffer.copy_(values if buffer.is_floating_point() else values.round())
                offset += buffer.numel()

    def _buffers(self) -> list[torch.Tensor]:
        return [b for name, b in self._model.named_buffers() if name in self._names]


def _averaged(model: torch.nn.Module) -> set[str]:
    persistent = model.state_dict().keys()
    return {
        name
        for name, buffer in model.named_buffers()
        if name in persistent
        and (buffer.is_floating_point() or name.endswith("num_batches_tracked"))
    }
