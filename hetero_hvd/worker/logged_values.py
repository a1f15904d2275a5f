"""What a script logs by step: rolled up on one worker, and told once a second at most.

On rank 0; where that has no samples in a step, on the first worker that has, for on others the body
of the script's loop does not run at that step.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from hetero_hvd.errors import UserError
from hetero_hvd.messages import Logged, LoggedValue
from hetero_hvd.worker.accelerator import DeviceEvent, HostCopier, is_accelerator
from hetero_hvd.worker.data.share_loader import ShareLoader, Slice
from hetero_hvd.worker.micro_batch.split import kind_of
from hetero_hvd.worker.recovery.elastic_state import ElasticState

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
MAX_NAMES = 100
MAX_GROUPS = 16
"""Of parameters, whose learning rates are told where they differ."""

MAX_COPYING = 1000
"""Tensors on their way from a device; for one more the oldest is waited for."""

SHORTEST_SECONDS = 1.0
RESOLUTION = 1 / 2000
"""Of the time that a training has lasted: what is told then is no more often than that, so that a
week gives some 15,000 values of a name, not millions."""


class Copying(NamedTuple):
    """A tensor on its way from a device to the host."""

    name: str
    step: int
    host: torch.Tensor
    copied: DeviceEvent


class ValueWindow:
    """The values of one name since it was last told."""

    def __init__(self) -> None:
        self._count = self._step = 0
        self._total = 0.0
        self._minimum = math.inf
        self._maximum = -math.inf
        self._last = math.nan

    def add(self, step: int, value: float) -> None:
        """Take in one more."""
        self._count += 1
        self._step = step
        self._total += value
        self._minimum = min(self._minimum, value)  # NaN is no less than anything, nor more
        self._maximum = max(self._maximum, value)
        self._last = value

    def take(self) -> LoggedValue:
        """All of them as one."""
        has_numbers = self._minimum <= self._maximum  # else all are NaN
        return LoggedValue(
            step=self._step,
            count=self._count,
            mean=self._total / self._count,
            minimum=self._minimum if has_numbers else math.nan,
            maximum=self._maximum if has_numbers else math.nan,
            last=self._last,
        )


class ValueLog:
    """The values that one trainer's script logs, with its loss and learning rates.

    Args:
        state: Who this worker is, and where training stands.
        optimizer: For its learning rates.
        loader: For the number of steps that are left.
        part: Gives this worker's part of a step of which some workers have none; None elsewhere, as
            all run the script then.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        state: ElasticState,
        optimizer: torch.optim.Optimizer,
        loader: ShareLoader,
        part: Callable[[], Slice | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._optimizer = optimizer
        self._loader = loader
        self._part = part
        self._clock = clock
        self._windows: dict[str, ValueWindow] = {}
        self._names: set[str] = set()
        self._copiers: dict[torch.device, HostCopier] = {}
        self._copying: deque[Copying] = deque()
        self._num_epochs = 0
        self._began_seconds = self._due_seconds = math.nan
        self._is_admitted = self._is_training = self._has_untold_steps = False

    def begin(self, num_epochs: int) -> None:
        """The loop over so many epochs begins; this worker is admitted."""
        self._num_epochs = num_epochs
        self._is_admitted = self._is_training = True
        if not self._state.is_leader:  # what was logged before the loop is rank 0's
            self._forget()
        if math.isnan(self._began_seconds):
            self._began_seconds = self._clock()
        self._due_seconds = self._clock() + SHORTEST_SECONDS

    def end(self) -> None:
        """The loop is left: what is logged from now on is told at once."""
        self._is_training = False
        self.tell()

    def epoch_done(self) -> None:
        """After the last one who is not rank 0 is soon heard no more, where there is no driver."""
        if self._state.position.epoch >= self._num_epochs:
            self.tell()

    def log(self, values: Mapping[str, object]) -> None:
        """Take in what the script has logged; see `Trainer.log`.

        Raises:
            UserError: A name or a value cannot be recorded; says which.
        """
        if self._is_admitted and not self._is_teller:
            return
        step = self._state.position.applied_steps
        for name, value in values.items():
            self._check(name)
            self._add(name, step, value)
        if self._is_admitted and not self._is_training:
            self.tell()

    def step_applied(self) -> None:
        """A step is applied, with the learning rates as they stand."""
        position = self._state.position
        if self._is_teller:
            self._has_untold_steps = True
            if "loss" not in self._names:
                self._window("loss").add(position.applied_steps, position.loss)
        now_seconds = self._clock()
        if now_seconds < self._due_seconds:
            return
        lasted_seconds = now_seconds - self._began_seconds
        self._due_seconds = now_seconds + max(SHORTEST_SECONDS, RESOLUTION * lasted_seconds)
        self._collect()
        self._add_rates()
        self._tell_windows()

    def tell(self) -> None:
        """Tell all that waits, also what is still to come from a device."""
        if self._is_admitted:
            self._add_rates()
            self._collect(is_last=True)
            self._tell_windows()

    @property
    def _is_teller(self) -> bool:
        """Whether what is logged here counts."""
        part = self._part()
        return (
            self._state.is_leader
            if part is None
            else part.num_samples > 0 and not part.first_sample
        )

    def _forget(self) -> None:
        self._windows.clear()
        self._copying.clear()

    def _check(self, name: object) -> None:
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise UserError(
                f"trainer.log: {name!r} is no name: must be 1 to 64 letters, digits, '_', '.', '/' "
                "or '-', a letter or '_' first"
            )
        if name not in self._names:
            if len(self._names) >= MAX_NAMES:
                raise UserError(
                    f"trainer.log: {name!r} is one name too many: {MAX_NAMES} in a training at "
                    "most; a number that counts is a value, not a part of a name"
                )
            self._names.add(name)
            self._windows.pop(name, None)  # of the trainer's own: the script tells it from now on

    def _window(self, name: str) -> ValueWindow:
        return self._windows.setdefault(name, ValueWindow())

    def _add(self, name: str, step: int, value: object) -> None:
        if isinstance(value, torch.Tensor) and _is_on_device(value):
            self._collect()
            device = value.device
            copier = self._copiers.setdefault(device, HostCopier(device))
            own = value.detach().clone()  # the script may write into its own before it is copied
            self._copying.append(Copying(name, step, *copier.copy(own)))
            return
        number = _number(value)
        if number is None:
            raise UserError(
                f"trainer.log: {name!r} is {kind_of(value)}: must be a number (int, float, bool, "
                "or a tensor or array of one real number)"
            )
        self._window(name).add(step, number)

    def _collect(self, *, is_last: bool = False) -> None:
        """Read what has come from a device; at last, and where too many are under way, wait."""
        while self._copying:
            one = self._copying[0]
            if not one.copied.query():
                if not is_last and len(self._copying) < MAX_COPYING:
                    return
                one.copied.wait()
            self._copying.popleft()
            self._window(one.name).add(one.step, float(one.host))

    def _add_rates(self) -> None:
        """Those of steps that are told now; a training may be over within an instant."""
        if not self._has_untold_steps:
            return
        self._has_untold_steps = False
        step = self._state.position.applied_steps
        for name, rate in _learning_rates(self._optimizer):
            if name not in self._names:
                self._add(name, step, rate)

    def _tell_windows(self) -> None:
        position = self._state.position
        values = {name: window.take() for name, window in self._windows.items()}
        self._windows = {}
        if values:
            self._state.context.tell(
                Logged(
                    step=position.applied_steps,
                    epoch=position.epoch,
                    values=values,
                    remaining_steps=self._remaining_steps(),
                    is_left=not self._is_training,
                )
            )

    def _remaining_steps(self) -> int:
        position = self._state.position
        left = self._num_epochs - position.epoch
        if left <= 0:
            return 0
        this_one = self._loader.steps_per_epoch(position.skipped_samples)
        others = self._loader.steps_per_epoch()
        if this_one is None or others is None:
            return -1
        return max(0, this_one - position.step_in_epoch) + (left - 1) * others


def _is_on_device(value: torch.Tensor) -> bool:
    """Whether it is one real number that a device has, or will have."""
    is_number = value.numel() == 1 and not value.is_complex() and not value.is_meta
    return is_number and is_accelerator(value.device)


def _number(value: object) -> float | None:
    """A value as a number; None if it is none."""
    try:
        if isinstance(value, torch.Tensor):
            return float(value.detach()) if value.numel() == 1 else None
        if isinstance(value, np.ndarray | np.generic):
            is_number = value.size == 1 and value.dtype.kind in "bfiu"
            return float(value.item()) if is_number else None
        return float(value) if isinstance(value, int | float) else None
    except (RuntimeError, TypeError, ValueError, OverflowError):  # complex, without memory, too big
        return None


def _learning_rates(optimizer: torch.optim.Optimizer) -> list[tuple[str, object]]:
    """Of all groups of parameters; one where they are alike, or where all is on a device."""
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group][:MAX_GROUPS]
    if not rates:
        return []
    if len(rates) == 1 or all(rate is rates[0] for rate in rates):
        return [("learning_rate", rates[0])]
    on_device = any(
        isinstance(rate, torch.Tensor) and is_accelerator(rate.device) for rate in rates
    )
    if not on_device and all(float(rate) == float(rates[0]) for rate in rates):
        return [("learning_rate", rates[0])]
    return [(f"learning_rate.{number}", rate) for number, rate in enumerate(rates)]
