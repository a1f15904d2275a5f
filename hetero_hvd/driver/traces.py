"""Orders for traces: from the command line, over HTTP, or by a signal to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from hetero_hvd.config.job import MAX_TRACE_STEPS
from hetero_hvd.core.view.live_words import trace_in_words
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_launch import TRACES_FOLDER
from hetero_hvd.errors import UserError
from hetero_hvd.messages import TraceRequested, TraceWritten, WorkerId
from hetero_hvd.run.web.orders import TraceOrder


class TraceOrders:
    """Passes orders on to the workers. Used in the loop's thread.

    Args:
        slots: Gives the slots of the job.
        send: Sends to the worker with a host's name; whether it has a channel.
        say: Shows a line.
    """

    def __init__(
        self,
        slots: Callable[[], Iterable[Slot]],
        send: Callable[[str, TraceRequested], bool],
        say: Callable[[str], None],
    ) -> None:
        self._slots = slots
        self._send = send
        self._say = say

    def start(self, wish: object) -> str:
        """Let workers record their next steps.

        Args:
            wish: Fields of `TraceOrder`.

        Returns:
            What will happen, in words.

        Raises:
            UserError: It is no such order, or a worker is not there.
        """
        try:
            order: TraceOrder = msgspec.convert(wish, TraceOrder)
        except msgspec.ValidationError as error:
            raise UserError(
                f"trace: found {wish}, must have steps, 1 to {MAX_TRACE_STEPS}, and workers as "
                "NODE:SLOT"
            ) from error
        ready = {slot.worker: slot for slot in self._slots() if slot.is_available}
        names = ready if order.workers is None else map(WorkerId.parse, order.workers)
        chosen = set(names)
        if not chosen:
            raise UserError("trace: no worker is there yet")
        if missing := chosen - ready.keys():
            there = ", ".join(map(str, sorted(ready)))
            raise UserError(f"trace: {min(missing)} is not there; there are: {there}")
        for worker, slot in ready.items():
            is_chosen = worker in chosen
            if is_chosen or order.timeline:
                request = TraceRequested(
                    num_steps=order.steps, profiler=is_chosen, timeline=order.timeline
                )
                self._send(slot.host, request)
        who = ", ".join(map(str, sorted(chosen)))
        return f"the next {order.steps} steps of {who} are recorded into {TRACES_FOLDER}/"

    def start_all(self) -> None:
        """Let all record, as a signal wants it, and say so."""
        try:
            self._say(self.start({"timeline": True}))
        except UserError as error:
            self._say(str(error))

    def observe(self, _at_unix_seconds: float, event: object) -> None:
        """Say where a trace is; an observer of the bus."""
        if isinstance(event, TraceWritten):
            self._say(trace_in_words(event))
