"""Micro-batches that the workers of a step go through together, although their numbers differ.

A layer that normalises over all workers meets the others in its forward and its backward pass. All
agree at the start of a step how many rounds there are: the largest number of micro-batches that any
of them has. Who has fewer, or nothing at all, *helps* in the rest: it takes part with empty
contributions, so that nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Literal, Protocol

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.comm.horovod import Collective, Handle, Interrupted

BACKWARD_FLAG = 1
"""Place in a layer's forward sums that tells whether anybody will ask for its backward sums."""


Way = Literal["forward", "backward"]


class RoundLayer(Protocol):
    """What a layer must tell to be helped for."""

    num_features: int
    is_asked_for: bool
    """Whether its input in the last forward pass here needs a gradient."""

    def sums_known(self, sums: torch.Tensor) -> None:
        """The forward sums of a round are complete; also called where this worker only helps."""


class SyncRounds:
    """The rounds of the steps of one model. Used by the training thread, and by its autograd.

    What breaks on the way is no error in the script's passes, which go on with this worker's own
    numbers: `finish` raises it, and the step is dropped.

    Args:
        layers: Name to layer; each meets the others once in every forward pass.
    """

    def __init__(self, layers: Mapping[str, RoundLayer]) -> None:
        self._layers = dict(layers)
        self._collective: Collective | None = None
        self._round = self._last = -1
        self._waiting: set[str] = set()
        self._clock = PhaseClock()
        self._fault: Interrupted | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there are such layers."""
        return bool(self._layers)

    def begin_step(self) -> None:
        """Nothing is agreed yet."""
        self._collective = None
        self._round = self._last = -1
        self._fault = None
        _current.rounds = None

    def agree(self, collective: Collective, num_own: int, clock: PhaseClock) -> None:
        """Learn the number of rounds.

        Args:
            collective: The rendezvous.
            num_own: Micro-batches of this worker in the step, >= 0.
            clock: Of the step.
        """
        if collective.size == 1:
            return
        _current.rounds = self
        if not self._layers:
            return
        mine = torch.tensor([[float(num_own)]], dtype=torch.float64)
        try:
            with clock.phase("comm_wait"):
                numbers = collective.wait(collective.gather_rows_async(mine, "rounds"))
        except Interrupted as fault:
            self._fault = fault
            return
        self._collective = collective
        self._clock = clock
        self._last = int(numbers.max()) - 1

    @property
    def is_open(self) -> bool:
        """Whether layers meet the other workers now."""
        return self._collective is not None

    def next(self) -> None:
        """The next micro-batch begins."""
        self._round += 1
        self._waiting = set()

    def check_known(self, layer: RoundLayer, name: str) -> None:
        """Refuse a layer of another model: a worker without samples would not know of it.

        Raises:
            UserError: It is one, or was registered after the trainer was made.
        """
        if self._layers.get(name) is not layer:
            raise UserError(
                "a SyncBatchNorm was used in a step that is none of the model's layers as the "
                "trainer was given it, but of another model, such as a teacher, or new: call "
                ".eval() on that model, or leave out convert_sync_batch_norm there"
            )

    def forward_sums(self, name: str, own: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Add a layer's numbers up over all workers.

        Args:
            name: Of the layer, which is one of the model's.
            own: This worker's, float64 on the CPU.

        Returns:
            The sums, and the round that they belong to.

        Raises:
            UserError: The layer was met twice in this round.
        """
        if name in self._waiting:
            raise UserError(
                f"model.{name}: SyncBatchNorm was used twice in one forward pass, or again by "
                "activation checkpointing: use a layer of its own, and checkpoint the others"
            )
        self._waiting.add(name)
        return self._sum(own, name, self._round, "forward"), self._round

    def backward_sums(self, name: str, number: int, own: torch.Tensor) -> torch.Tensor:
        """The same in the backward pass of a round."""
        return self._sum(own, name, number, "backward")

    def help_backward(self) -> None:
        """This worker's micro-batch has no backward pass: its weight is zero."""
        if self._collective is None or self._fault is not None:
            return
        try:
            self._help_backward({n for n in self._waiting if self._layers[n].is_asked_for})
        except Interrupted as fault:
            self._fault = fault

    def break_off(self, why: str) -> None:
        """This worker meets the others no more in this step; `finish` raises."""
        self._fault = Interrupted(why)

    def finish(self, collective: Collective, clock: PhaseClock) -> None:
        """Help in the rounds that others have beyond one's own.

        Args:
            collective: The rendezvous.
            clock: Of the step.

        Raises:
            Interrupted: The rendezvous broke, now or before.
        """
        if self._collective is None and self._fault is None:
            self.agree(collective, 0, clock)
        if self._fault is not None:
            raise self._fault
        while self._round < self._last:
            self.next()
            with clock.phase("comm_wait"):
                self._help()
        _current.rounds = None

    def _help(self) -> None:
        handles = {
            name: self._start(torch.zeros(2 + 2 * layer.num_features), name, self._round, "forward")
            for name, layer in self._layers.items()
        }
        asked = set()
        for name, handle in handles.items():
            sums = self._wait(handle)
            self._layers[name].sums_known(sums)
            if sums[BACKWARD_FLAG]:
                asked.add(name)
        self._help_backward(asked)

    def _help_backward(self, names: set[str]) -> None:
        handles = [
            self._start(
                torch.zeros(2 * self._layers[name].num_features), name, self._round, "backward"
            )
            for name in sorted(names)
        ]
        for handle in handles:
            self._wait(handle)

    def _sum(self, own: torch.Tensor, name: str, number: int, way: Way) -> torch.Tensor:
        if self._fault is not None:
            return own
        began = time.perf_counter()
        try:
            return self._wait(self._start(own, name, number, way))
        except Interrupted as fault:
            self._fault = fault
            return own
        finally:
            seconds = time.perf_counter() - began
            self._clock.add(way, -seconds)  # waiting for others inside of a pass is no work
            self._clock.add("comm_wait", seconds)

    def _start(self, own: torch.Tensor, name: str, number: int, way: Way) -> Handle:
        assert self._collective is not None  # noqa: S101 - only called in between
        numbers = own.to(torch.float64, copy=True)  # the sum takes their place
        return self._collective.sum_async(numbers, f"sync.{name}.{number}.{way}")

    def _wait(self, handle: Handle) -> torch.Tensor:
        assert self._collective is not None  # noqa: S101
        return self._collective.wait(handle)


class _CurrentRounds(threading.local):
    rounds: SyncRounds | None = None


_current = _CurrentRounds()


def current_rounds() -> SyncRounds | None:
    """The rounds under way in this thread; None outside of a step."""
    return _current.rounds
