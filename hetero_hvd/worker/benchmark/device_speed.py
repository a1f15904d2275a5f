"""What a device can do at best: matrix product and copy, for each number format."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch

from hetero_hvd.core.benchmark import FEWEST_REPEATS, spread
from hetero_hvd.messages.benchmark import Speed
from hetero_hvd.worker.accelerator import synchronize

FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
COPY_FORMATS = (torch.float32, torch.bfloat16)
LEAST_SECONDS = 0.01
"""A product should take so long at least: shorter ones measure how fast it is launched."""

FIRST_SIZE, MAX_SIZE = 256, 16384
COPY_BYTES = 128 * 2**20
"""More than any cache holds."""

MAX_REPEATS = 20


def measure_device(device: torch.device, *, budget_seconds: float) -> Iterator[Speed]:
    """Measure one thing after the other; formats that the device does not know are left out.

    A matrix product of n x n counts 2 n^3 operations; a copy counts each byte twice, read and
    written. The median of the repeats counts.

    Args:
        device: Of this process.
        budget_seconds: What all may take; a very slow one takes a little longer.
    """
    slot_seconds = budget_seconds / (len(FORMATS) + len(COPY_FORMATS))
    for dtype in FORMATS:
        try:
            yield _product(device, dtype, slot_seconds)
        except (RuntimeError, NotImplementedError):  # torch: not implemented for this format here
            continue
    for dtype in COPY_FORMATS:
        yield _copy(device, dtype, slot_seconds)


def _product(device: torch.device, dtype: torch.dtype, slot_seconds: float) -> Speed:
    deadline = time.perf_counter() + slot_seconds
    size = FIRST_SIZE
    while True:
        left = torch.ones(size, size, device=device, dtype=dtype)
        right = torch.ones(size, size, device=device, dtype=dtype)
        out = torch.empty(size, size, device=device, dtype=dtype)

        def multiply(
            left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = out
        ) -> None:
            torch.mm(left, right, out=out)

        _timed(device, multiply)  # chooses a kernel, allocates
        seconds = _timed(device, multiply)
        is_late = time.perf_counter() + 8 * seconds * (1 + FEWEST_REPEATS) > deadline
        if seconds >= LEAST_SECONDS or size >= MAX_SIZE or is_late:
            break
        size *= 2
    found = _repeat(device, multiply, deadline)
    return _speed("matrix product", dtype, 2.0 * size**3, found)


def _copy(device: torch.device, dtype: torch.dtype, slot_seconds: float) -> Speed:
    deadline = time.perf_counter() + slot_seconds
    source = torch.ones(COPY_BYTES // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    _timed(device, copy)
    return _speed("copy", dtype, 2.0 * COPY_BYTES, _repeat(device, copy, deadline))


def _repeat(device: torch.device, work: Callable[[], None], deadline: float) -> list[float]:
    found: list[float] = []
    while len(found) < FEWEST_REPEATS or (
        len(found) < MAX_REPEATS and time.perf_counter() < deadline
    ):
        found.append(_timed(device, work))
    return found


def _timed(device: torch.device, work: Callable[[], None]) -> float:
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def _speed(what: str, dtype: torch.dtype, amount: float, seconds: list[float]) -> Speed:
    middle = median(seconds)
    return Speed(
        what=what,
        dtype=str(dtype).removeprefix("torch."),
        per_second=amount / middle if middle > 0 else math.nan,
        spread_ratio=spread(seconds),
        num_repeats=len(seconds),
    )
