"""Orders for traces: from the command line, over HTTP, or by a signal to the driver."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from hetero_hvd.config import JobConfig
from hetero_hvd.config.job import MAX_TRACE_STEPS, traced_steps
from hetero_hvd.driver.slot import Slot
from hetero_hvd.errors import UserError
from hetero_hvd.messages import Event, TraceRequested, TraceWritten, WorkerId
from hetero_hvd.probes import horovod_notice

FOLDER = "traces"
SLEEPS = "timeline-writer-sleeps"
"""The correction without which a timeline that may be started takes a core of rank 0 all the time:
a stock Horovod records one only where the user sets HOROVOD_TIMELINE."""


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is wanted.

    Attributes:
        steps: So many, from the next one on.
        workers: Who records with torch's profiler, `node:slot`; None: all.
        timeline: Whether with Horovod's timeline, too, which rank 0 writes.
    """

    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_TRACE_STEPS)] = 5
    workers: tuple[str, ...] | None = None
    timeline: bool = False


class Tracing:
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
            wish: Fields of `Order`.

        Returns:
            What will happen, in words.

        Raises:
            UserError: It is no such order, or a worker is not there.
        """
        try:
            order: Order = msgspec.convert(wish, Order)
        except msgspec.ValidationError as error:
            raise UserError(f"trace: {error}") from error
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
        return f"the next {order.steps} steps of {who} are recorded into {FOLDER}/"

    def start_all(self) -> None:
        """Let all record, as a signal wants it, and say so."""
        try:
            self._say(self.start({"timeline": True}))
        except UserError as error:
            self._say(str(error))

    def observe(self, _at_unix_seconds: float, event: Event) -> None:
        """Say where a trace is; an observer of the journal."""
        if isinstance(event, TraceWritten):
            self._say(in_words(event))


def in_words(event: TraceWritten) -> str:
    """A line for people."""
    place = f"{event.path} ({event.num_bytes / 1e6:.1f} MB)" if event.path else "nothing was kept"
    problem = f"; {event.problem}" if event.problem else ""
    last = event.from_step + event.num_steps - 1
    steps = f"steps {event.from_step} to {last}"
    return f"{event.worker} has recorded {steps} ({event.kind}): {place}{problem}"


def trace_environment(job: JobConfig, output: Path) -> dict[str, str]:
    """Variables of every worker: where traces go, and the window that the job itself wants.

    Args:
        job: The job's settings.
        output: Folder of the run.
    """
    from_step, to_step = traced_steps(job.trace_steps)
    config = {
        "folder": str(output.absolute() / FOLDER),
        "from_step": from_step,
        "to_step": to_step,
        "workers": job.trace_workers.split(",") if job.trace_workers else [],
        "timeline": job.trace_timeline,
    }
    variables = {"HETERO_HVD_TRACES": json.dumps(config)}
    if "HOROVOD_TIMELINE" not in os.environ and SLEEPS in horovod_notice.corrections():
        variables["HOROVOD_TIMELINE"] = "DYNAMIC"  # so that it can be started at any time
    return variables
