"""What makes two workers the same: model, optimizer, scheduler, scaler, position, results."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from hetero_hvd.errors import UserError

CHUNK_ELEMENTS = 2**18
"""Elements of a tensor that are summed at once; bounds the extra memory to a few MiB."""


class Stateful(Protocol):
    """Anything with a state dict."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:  # noqa: ANN401
        """Take over a state."""


class Trainable:
    """Which parameters of a model are trained: a joiner was not there when some were frozen.

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


def all_parts(
    parts: Mapping[str, Stateful | None], extra_state: Mapping[str, Stateful]
) -> dict[str, Stateful]:
    """The parts that there are, and the script's own.

    Raises:
        UserError: A name is given to two parts.
    """
    taken = sorted(parts.keys() & extra_state.keys())
    if taken:
        raise UserError(f"extra_state: {', '.join(taken)}: kept already; use another name")
    return {name: part for name, part in parts.items() if part is not None} | dict(extra_state)


class Replica:
    """The training state of this worker.

    Args:
        parts: Name to model, optimizer, scheduler, scaler, …; each has a state dict.
    """

    def __init__(self, parts: dict[str, Stateful]) -> None:
        self._parts = parts

    def checksum(self) -> str:
        """A digest of every bit of every tensor and number of the state.

        Tensors are summed on their device, so that the cost is a pass over memory and a few numbers
        per tensor to the host: bits read as integers, times fixed random weights (plain sums of
        sign-magnitude floats cancel when values of both signs are shifted alike). Equal replicas
        have equal digests; replicas that differ by training have different ones for all practical
        purposes (it is no cryptographic hash of the tensors).
        """
        digest = hashlib.sha256()
        sums: list[torch.Tensor] = []
        for name, leaf in self._leaves():
            if isinstance(leaf, torch.Tensor):
                digest.update(f"{name}{tuple(leaf.shape)}{leaf.dtype}".encode())
                sums.append(_weighted_bits(leaf).cpu())
            else:
                digest.update(f"{name}{leaf!r}".encode())
        if sums:
            digest.update(torch.cat(sums).numpy().tobytes())
        return digest.hexdigest()[:32]

    def dump(self) -> bytes:
        """The whole state as bytes."""
        buffer = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self._parts.items()}, buffer)
        return buffer.getvalue()

    def snapshot(self) -> dict[str, Any]:
        """A copy of the whole state in the host's memory, which training does not change."""
        return {name: _copied(part.state_dict()) for name, part in self._parts.items()}

    def load(self, payload: bytes) -> dict[str, Any]:
        """Take over a state that `dump` wrote on another worker, or that was kept on disk.

        Only tensors and plain data are accepted (`weights_only`): nothing is unpickled that could
        run.

        Returns:
            All that the payload held.

        Raises:
            UserError: The state holds other objects, or does not fit this worker's model.
        """
        try:
            state: dict[str, Any] = torch.load(
                io.BytesIO(payload), map_location="cpu", weights_only=True
            )
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except Exception as error:
            raise UserError(
                f"the state of another worker does not fit this one: {error}"
            ) from error
        return state

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        for name, part in self._parts.items():
            yield from _walk(name, part.state_dict())


def _copied(value: Any) -> Any:  # noqa: ANN401 - any plain data
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    return value


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any plain data
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(f"{name}.{index}", item)
    else:
        yield name, value


def _weighted_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Weighted sums of the bits, one for each `CHUNK_ELEMENTS`; int64."""
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    integers = {1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32)
    weights = _weights(flat.device)
    sums = []
    for piece in flat.view(integers).split(CHUNK_ELEMENTS):
        bits = piece.to(torch.int32)
        bits = (bits ^ (bits >> 15)).mul_(weights[: len(bits)])  # lets the sign reach the low bits
        sums.append(bits.sum(dtype=torch.int64))
    return torch.stack(sums)


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    """Odd 32-bit integers without a pattern: the finaliser of SplitMix64 (Steele et al., 2014)."""
    mixed = torch.arange(1, CHUNK_ELEMENTS + 1) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return ((mixed >> 31) | 1).to(torch.int32).to(device)
