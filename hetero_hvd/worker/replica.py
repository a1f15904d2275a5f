"""What makes two workers the same: model, optimizer, scheduler, scaler, position, results."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from hetero_hvd.errors import UserError


class Stateful(Protocol):
    """Anything with a state dict."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:  # noqa: ANN401
        """Take over a state."""


class Trainable:
    """Which parameters of a model are trained: a worker that joins was not there when some were frozen.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Name to `requires_grad`."""
        return {name: p.requires_grad for name, p in self._model.named_parameters()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Freeze and unfreeze."""
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(state[name])


class Replica:
    """The training state of this worker.

    Args:
        parts: Name to model, optimizer, scheduler, scaler, …; each has a state dict.
    """

    def __init__(self, parts: dict[str, Stateful]) -> None:
        self._parts = parts

    def checksum(self) -> str:
        """A digest of every bit of every tensor and number of the state.

        Tensors are summed as integers on their device (wrap-around), so that the cost is one pass over
        memory and one number per tensor to the host. Equal replicas have equal digests; replicas that
        differ by training have different ones for all practical purposes (it is no cryptographic hash
        of the tensors).
        """
        digest = hashlib.sha256()
        sums: list[torch.Tensor] = []
        for name, leaf in self._leaves():
            if isinstance(leaf, torch.Tensor):
                digest.update(f"{name}{tuple(leaf.shape)}{leaf.dtype}".encode())
                sums.append(_bit_sum(leaf).cpu())
            else:
                digest.update(f"{name}{leaf!r}".encode())
        if sums:
            digest.update(torch.stack(sums).numpy().tobytes())
        return digest.hexdigest()[:32]

    def dump(self) -> bytes:
        """The whole state as bytes."""
        buffer = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self._parts.items()}, buffer)
        return buffer.getvalue()

    def load(self, payload: bytes) -> None:
        """Take over a state that `dump` wrote on another worker.

        Only tensors and plain data are accepted (`weights_only`): nothing is unpickled that could run.

        Raises:
            UserError: The state holds other objects, or does not fit this worker's model.
        """
        try:
            state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except Exception as error:
            raise UserError(f"the state of another worker does not fit this one: {error}") from error

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        for name, part in self._parts.items():
            yield from _walk(name, part.state_dict())


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any plain data
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(f"{name}.{index}", item)
    else:
        yield name, value


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of the bits of a tensor, read as integers of its element size; int64, wraps around."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    return flat.view(integers[flat.element_size()]).sum(dtype=torch.int64)
