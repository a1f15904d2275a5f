"""What Horovod offers for looking at it; `HorovodCollective` hands in the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hetero_hvd.worker.accelerator import has_nccl


class HorovodIntrospection:
    """Measures Horovod, and lets it measure itself.

    Args:
        hvd: The module `horovod.torch`.
    """

    def __init__(self, hvd: Any) -> None:  # noqa: ANN401 - has no types
        self._hvd = hvd

    def backend_of(self, tensor: torch.Tensor) -> str:
        """What moves this tensor: `gloo` or `nccl`."""
        return "nccl" if has_nccl(tensor.device) and self._hvd.nccl_built() else "gloo"

    def operate(self, op: str, tensor: torch.Tensor, name: str, options: dict[str, Any]) -> int:
        """Start an operation by its name in Horovod; reductions are sums.

        Args:
            op: Of `core.bandwidth.OPERATIONS`.
            tensor: This worker's input; it is left as it is.
            name: The same on all workers.
            options: Further arguments of Horovod's function.

        Returns:
            Horovod's number of it.

        Raises:
            HorovodInternalError: Horovod's; the rendezvous is over.
        """
        if op in {"allreduce", "reducescatter"}:
            options = options | {"op": self._hvd.Sum}
        number: int = getattr(self._hvd, f"{op}_async")(tensor, name=name, **options)
        return number

    def start_timeline(self, path: Path) -> None:
        """Let Horovod write what it does to a file, in Chrome's format, from now on."""
        self._hvd.start_timeline(str(path), mark_cycles=False)

    def stop_timeline(self) -> None:
        """Let it stop."""
        self._hvd.stop_timeline()
