"""States that could not be written down: told, counted, and known at the end of the job."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hetero_hvd.errors import first_line
from hetero_hvd.messages import CheckpointFailed, CheckpointWritten
from hetero_hvd.worker.recovery.plain import leaves

logger = logging.getLogger(__name__)

UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

Tell = Callable[[CheckpointWritten | CheckpointFailed], None]


class NotKept:
    """Says it of the first of those that fail one after the other; the driver hears of each.

    Args:
        every_seconds: How often a checkpoint is written; 0: not by time.
        trainer: Which `Trainer` of the script they are of, from 1.
        tell: Tells the driver, in the thread that writes.
    """

    def __init__(self, every_seconds: float, trainer: int, tell: Tell) -> None:
        self._every_seconds = every_seconds
        self._trainer = trainer
        self._tell = tell
        self._num_failed = 0

    def add(self, step: int, place: str, why: str, *, is_last: bool) -> None:
        """One more has failed.

        Args:
            step: Applied steps.
            place: Where it was to be.
            why: In words.
            is_last: Whether no other one will take its place.
        """
        self._num_failed += 1
        again = self._every_seconds
        when = f"in {again:g} s" if again else "when there is a better state, or at the end"
        logger.log(
            logging.ERROR if self._num_failed == 1 else logging.INFO,
            "the checkpoint of step %d cannot be written: %s%s",
            step,
            why,
            "" if is_last else f" (training goes on, and the next one is tried {when})",
        )
        num_failed, trainer = self._num_failed, self._trainer
        self._tell(
            CheckpointFailed(
                step=step, path=place, error=why, num_failed=num_failed, trainer=trainer
            )
        )

    def over(self, step: int) -> None:
        """One is written.

        Args:
            step: Applied steps.
        """
        if self._num_failed:
            words = "the checkpoint of step %d is written; %d before it could not be"
            logger.warning(words, step, self._num_failed)
        self._num_failed = 0


def why_not(error: BaseException, state: Mapping[str, Any], folder: Path) -> str:
    """Why a state could not be written and, where room is missing, how much there has to be.

    Args:
        error: What was raised.
        state: In the host's memory.
        folder: Where it was written, on this machine.
    """
    number = error.errno if isinstance(error, OSError) else None
    words = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
    if number not in (errno.ENOSPC, errno.EDQUOT):
        return words
    tensors = (one for _, one in leaves(state, "") if isinstance(one, torch.Tensor))
    needed_bytes = sum(tensor.nbytes for tensor in tensors)
    words += f": {_in_words(needed_bytes)} are needed"
    if number == errno.ENOSPC and (free_bytes := _free_bytes(folder)) is not None:
        words += f", {_in_words(free_bytes)} are free in {folder}"
    return words


def _in_words(num_bytes: int) -> str:
    unit, size = next(((u, s) for u, s in UNITS if num_bytes >= s), UNITS[-1])
    return f"{num_bytes / size:.3g} {unit}"


def _free_bytes(folder: Path) -> int | None:
    """In a folder, or where it would be made; None: nobody knows."""
    for place in (folder, *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
