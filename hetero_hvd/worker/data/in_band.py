"""How a batch of small tensors gets from a loader process to the training.

PyTorch gives each tensor shared memory, whose file descriptor the training process asks for through
a socket with a password: most of a millisecond for a batch of any size. What is small travels in
the pipe itself, in a fifth of that.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from hetero_hvd.worker.data.collate import Collate

SMALL_BYTES = 2**16
"""Of a tensor's memory: as much as a pipe holds. Larger ones are shared, which copies nothing."""


class InBand:
    """A `collate_fn` for loader processes; the training process gets what the given one gives.

    Args:
        collate: Makes a batch.
    """

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> _Sent:  # noqa: ANN401 - what the given one takes
        """Called by torch in a loader process."""
        return _Sent(self._collate(samples))


class _Sent:
    """Becomes the batch itself where it is unpickled."""

    def __init__(self, batch: Any) -> None:  # noqa: ANN401 - whatever the script makes
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        buffer = io.BytesIO()
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(self._batch)
        return pickle.loads, (buffer.getvalue(),)


class _Pickler(ForkingPickler):
    """As torch's processes pickle, except for small tensors on the host."""

    def __init__(self, buffer: io.BytesIO, protocol: int) -> None:
        super().__init__(buffer, protocol)
        self._contents: dict[int, _Content] = {}

    def reducer_override(self, thing: Any) -> Any:  # noqa: ANN401 - see pickle
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return NotImplemented
        storage = thing.untyped_storage()
        if storage.nbytes() > SMALL_BYTES:
            return NotImplemented
        # Tensors that share their memory still do so afterwards.
        content = self._contents.setdefault(storage.data_ptr(), _Content(storage))
        place = thing.storage_offset(), tuple(thing.shape), thing.stride()
        return _tensor, (content, thing.dtype, *place)


class _Content:
    """The memory of tensors; becomes a storage where it is unpickled."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        seen = torch.empty(0, dtype=torch.uint8).set_(self._storage)
        return _storage, (bytearray(seen.numpy().data),)


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized
    is_lazy = tensor.is_conj() or tensor.is_neg() or tensor.requires_grad
    return is_dense and not is_lazy and tensor.device.type == "cpu"


def _storage(content: bytearray) -> torch.UntypedStorage:
    """In memory of torch, as kernels may compute other bits where it is aligned otherwise."""
    if not content:
        return torch.UntypedStorage(0)
    return torch.frombuffer(content, dtype=torch.uint8).clone().untyped_storage()


def _tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
