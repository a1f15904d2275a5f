"""Sums of tensors in an accelerator's memory, by a Horovod that adds up in the host's only.

Such a sum has three parts: a copy to the host, which the device makes when it has come so far; the
reduction, which can be started only then; and the way back. (Horovod's own way through the host
reads the copy at once if Horovod was built without CUDA, whether the device has written it or not:
0.28.1, `DoAllreduceCudaOnCPU` in `torch/mpi_ops_v2.cc`.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from hetero_hvd.errors import TransientError
from hetero_hvd.worker.accelerator import DeviceEvent, HostCopier

Handle = Any


class StagedSum:
    """One sum on its way.

    Args:
        tensor: On the device; the sum arrives there.
        host: Its copy.
        copied: When that holds the tensor's values.
        reduce: Starts the reduction of the copy.

    Attributes:
        handle: Of the reduction; None: it was not started.
        fault: Why that failed; empty if it did not.
        error: What failed, where that is no fault of a rendezvous: each who waits gets it.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        host: torch.Tensor,
        copied: DeviceEvent,
        reduce: Callable[[torch.Tensor], Handle],
    ) -> None:
        self._tensor = tensor
        self._host = host
        self._reduce = reduce
        self._has_arrived = False
        self.copied = copied
        self.handle: Handle = None
        self.fault = ""
        self.error: Exception | None = None

    def start(self) -> None:
        """Reduce it: the copy is there."""
        try:
            self.handle = self._reduce(self._host)
        except TransientError as error:  # it is told to whoever waits for this sum
            self.fault = str(error)
        except Exception as error:  # noqa: BLE001 - as above: others wait for sums of their own
            self.error = error

    def write_back(self) -> torch.Tensor:
        """Let the device have the sum, ahead of what it is given from now on."""
        if not self._has_arrived:
            self._tensor.copy_(self._host, non_blocking=True)
            self._has_arrived = True
        return self._tensor


class Staging:
    """The sums of one rendezvous that are still on their way to the host, in order."""

    def __init__(self) -> None:
        self._copiers: dict[torch.device, HostCopier] = {}
        self._copying: deque[StagedSum] = deque()

    def begin(self, tensor: torch.Tensor, reduce: Callable[[torch.Tensor], Handle]) -> StagedSum:
        """Start a sum; what has arrived of the others meanwhile is reduced.

        Args:
            tensor: On a device.
            reduce: Starts the reduction of a tensor on the host.
        """
        device = tensor.device
        if device not in self._copiers:
            self._copiers[device] = HostCopier(device)
        staged = StagedSum(tensor, *self._copiers[device].copy(tensor), reduce)
        self._copying.append(staged)
        self.start_ready()
        return staged

    def start_ready(self) -> None:
        """Start what is on the host already."""
        while self._copying and self._copying[0].copied.query():
            self._copying.popleft().start()

    def start_all(self) -> None:
        """Start all, one after the other, as they arrive."""
        while self._copying:
            self._copying[0].copied.wait()
            self._copying.popleft().start()

    def forget(self) -> None:
        """The rendezvous is over: what was not started never will be."""
        for staged in self._copying:
            staged.fault = "the rendezvous of this operation is over"
        self._copying.clear()
