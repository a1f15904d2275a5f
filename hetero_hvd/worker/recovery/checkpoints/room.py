"""Memory for a copy of the state, got from the system beside the training."""

from __future__ import annotations

import mmap
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch

from hetero_hvd.worker.recovery.checkpoints.background import Beside

SMALL_BYTES = 2**24
"""A copy up to this size takes a few milliseconds, whatever memory it goes to."""

HUGE_PAGE_BYTES = 2**21
"""From this size on torch asks for huge pages, where these are switched on."""

PIECE_BYTES = 2**22
"""Written to at once: a few milliseconds."""

Form = tuple[torch.Size, tuple[int, ...], torch.dtype]


class Room:
    """The memory of the next copy.

    The system gives memory page by page, when it is written to for the first time, and that takes
    several times as long as the copying. So a thread writes to it before the copy is made.

    Args:
        beside: Does it.
    """

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._free: dict[Form, list[torch.Tensor]] = {}
        self._thread: threading.Thread | None = None
        self._is_left = False

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
            there = list(tensors())
            if sum(tensor.nbytes for tensor in there) <= SMALL_BYTES:
                return True
            # Not the tensors themselves: they may be replaced, and freed, while this goes on.
            wanted = [_form(each) for each in there]
            self._is_left = False
            self._thread = threading.Thread(target=self._get, args=(wanted,), name="room")
            try:
                self._thread.start()
            except RuntimeError:  # no more threads: the copy gets its memory itself
                self._thread = None
                return True
        return not self._thread.is_alive()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, in memory that is there if there is some for it."""
        free = self._free.get(_form(tensor))
        host = free.pop() if free else torch.empty_like(tensor, device="cpu")
        return host.copy_(tensor)

    def leave(self) -> None:
        """The copy is made, or will not be: what it has not used goes back."""
        self._is_left = True
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._free = {}

    def _get(self, wanted: list[Form]) -> None:
        free = defaultdict(list)
        with suppress(MemoryError, RuntimeError, OSError):  # whoever makes the copy will say so
            for form in wanted:
                host = self._got(form)
                if self._is_left:
                    return
                free[form].append(host)
        self._free = free

    def _got(self, form: Form) -> torch.Tensor:
        """As `torch.empty_like` on the host, but written to, and never in huge pages.

        To make room for those the system moves other memory, which the training waits for: one step
        of 0.4 s took 0.2 s more.
        """
        shape, stride, dtype = form
        shaped = torch.empty_like(torch.empty_strided(shape, stride, dtype=dtype, device="meta"))
        if shaped.nbytes < HUGE_PAGE_BYTES:
            return torch.empty_like(shaped, device="cpu").zero_()
        memory = mmap.mmap(-1, shaped.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if (small_pages := getattr(mmap, "MADV_NOHUGEPAGE", None)) is not None:
            with suppress(OSError):  # a kernel without them
                memory.madvise(small_pages)
        content = torch.frombuffer(memory, dtype=torch.uint8)
        for piece in content.split(PIECE_BYTES):
            if not self._is_left:
                self._beside.run(piece[:: mmap.PAGESIZE].zero_)
        return content.view(shaped.dtype).as_strided(shaped.shape, shaped.stride())


def _form(tensor: torch.Tensor) -> Form:
    return tensor.shape, tensor.stride(), tensor.dtype
