"""The phases of a step for profilers that look from outside, such as Nsight Systems."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from hetero_hvd.messages.launch import JobSettings
from hetero_hvd.worker.accelerator import phase_ranges

logger = logging.getLogger(__name__)


def wanted_ranges(
    job: JobSettings, device: torch.device
) -> Callable[[str], AbstractContextManager[object]] | None:
    """What is entered around each phase, with its name; None: nothing, as nobody wants it.

    Args:
        job: Says whether it is wanted; where that has no effect, it is said once.
        device: That computes.
    """
    ranges = phase_ranges(device) if job.nvtx else None
    if job.nvtx and ranges is None:
        logger.warning("nvtx: has no effect, as %s has no NVTX ranges", device.type)
    return ranges
