"""Memory for a copy of the state, got from the system beside the training."""

from __future__ import annotations

import mmap
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch

from hetero_hvd.worker.recovery.checkpoints.background import started

SMALL_BYTES = 2**24
"""A copy up to this size takes a few milliseconds, whatever memory it goes to."""

HUGE_PAGE_BYTES = 2**21
"""From this size on torch asks for huge pages, where these are switched on."""

Form = tuple[torch.Size, tuple[int, ...], torch.dtype]


class Room:
    """The memory of the next copy.

    The system gives memory page by page, when it is written to for the first time, and that takes
    several times as long as the copying. So a thread writes to it before the copy is made.
    """

    def __init__(self) -> None:
        self._free: dict[Form, list[torch.Tensor]] = {}
        self._thread: threading.Thread | None = None

    @property
    def is_used(self) -> bool:
        """Whether there is memory, or some is being got."""
        return self._thread is not None

    def is_ready(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> bool:
        """Whether a copy need not wait for its memory; begins to get it.

        Args:
            tensors: Gives what is to be copied, where it is now.
        """
        if self._thread is None:
            wanted = list(tensors())
            if sum(tensor.nbytes for tensor in wanted) <= SMALL_BYTES:
                return True
            self._thread = started(lambda: self._get(wanted), name="room")
            if self._thread is None:  # the copy gets its memory itself
                return True
        return not self._thread.is_alive()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, in memory that is there if there is some for it."""
        free = self._free.get(_form(tensor))
        host = free.pop() if free else torch.empty_like(tensor, device="cpu")
        return host.copy_(tensor)

    def leave(self) -> None:
        """The copy is made, or will not be: what it has not used goes back."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._free = {}

    def _get(self, wanted: list[torch.Tensor]) -> None:
        free = defaultdict(list)
        with suppress(MemoryError, RuntimeError, OSError):  # whoever makes the copy will say so
            for tensor in wanted:
                free[_form(tensor)].append(_in_small_pages(tensor).zero_())
        self._free = free


def _in_small_pages(tensor: torch.Tensor) -> torch.Tensor:
    """As `torch.empty_like` on the host, but never in huge pages.

    To make room for those the system moves other memory, which the training waits for: one step of
    0.4 s took 0.2 s more.
    """
    if tensor.nbytes < HUGE_PAGE_BYTES:
        return torch.empty_like(tensor, device="cpu")
    form = torch.empty_like(tensor, device="meta")
    memory = mmap.mmap(-1, tensor.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
    return content.as_strided(form.shape, form.stride())


def _form(tensor: torch.Tensor) -> Form:
    return tensor.shape, tensor.stride(), tensor.dtype
