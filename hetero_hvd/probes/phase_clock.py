"""Where the time of a training step goes, by phase, on this machine's own monotonic clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol

from hetero_hvd.messages import DEVICE_PHASES, OWN_PHASES, Phase

NO_PHASE = ("", 0.0)
_OWN = frozenset(OWN_PHASES)


class Event(Protocol):
    """What we need of `torch.Event`."""

    def record(self) -> None:
        """Mark this point of the device's stream."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from here to `end`."""


class DeviceClock(Protocol):
    """Makes events on the device; None where the host's clock is the device's clock."""

    def __call__(self) -> Event:
        """A new event."""


class ProcessorUse(NamedTuple):
    """Processor seconds of all threads of this process.

    Attributes:
        own: Outside of waits for others and evaluations.
        reducing: In waits for reductions.
    """

    own: float
    reducing: float


class PhaseClock:
    """Adds up the time of each phase over the steps since `take`.

    With a `device_clock`, the phases of the device's queue (`transfer`, `forward`, `backward`,
    `optimizer`) are measured between two device events and read only once the device has passed
    both: the hot path never waits for the device. The others are host time.

    Args:
        device_clock: Makes device events; None to use the host's clock for everything.

    Attributes:
        current: The phase under way and when it began, `time.perf_counter`; "" between two.
        marker: Entered around each phase while a trace is under way, with its name; None: nothing.
        ranges: The same as long as the process trains, for a profiler that looks from outside.
    """

    def __init__(self, device_clock: DeviceClock | None = None) -> None:
        self._device_clock = device_clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[tuple[str, Event, Event]] = []
        self._used_before = self._used_at_end = time.process_time()
        self._used_waiting = self._used_reducing = 0.0
        self.current = NO_PHASE
        self.marker: Callable[[str], AbstractContextManager[object]] | None = None
        self.ranges: Callable[[str], AbstractContextManager[object]] | None = None

    def use(self, device_clock: DeviceClock | None) -> None:
        """Take another device's clock from now on; see the class."""
        self._device_clock = device_clock

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Add the time of the block to phase `name`."""
        is_plain = self._device_clock is None and self.marker is None and self.ranges is None
        return _Block(self, name) if is_plain else self._marked(name)

    @contextmanager
    def _marked(self, name: Phase) -> Iterator[None]:
        """One that the device takes part in, or that a trace shows."""
        start = self.begin(name)
        events = self.new_events(name)
        if events is not None:
            events[0].record()
        try:
            with (
                nullcontext() if self.ranges is None else self.ranges(name),
                nullcontext() if self.marker is None else self.marker(name),
            ):
                yield
        finally:
            if events is not None:
                events[1].record()
            self.end(name, start, events)

    def begin(self, name: Phase) -> float:
        """A phase begins; when, as `end` wants it."""
        start = time.perf_counter()
        self.current = (name, start)
        return start

    def end(self, name: Phase, start: float, events: tuple[Event, Event] | None = None) -> None:
        """A phase ends that began at `start`; with its events where the device is measured.

        What waits and evaluations have used of the processor is no work of a step. Its clock is
        read inside of the phase that ends: under a CPU quota a thread is stopped at its next system
        call, as this is one, for what it has used before.
        """
        used = time.process_time()
        if name not in _OWN:
            self._used_waiting += used - self._used_at_end
            if name == "comm_wait":
                self._used_reducing += used - self._used_at_end
        self._used_at_end = used
        if events is None:
            self._seconds[name] += time.perf_counter() - start
        else:
            self._open.append((name, *events))
        self.current = NO_PHASE

    def new_events(self, name: Phase) -> tuple[Event, Event] | None:
        """To put around a phase that the device takes; None for one of the host."""
        if self._device_clock is None or name not in DEVICE_PHASES:
            return None
        return self._device_clock(), self._device_clock()

    def add(self, name: Phase, seconds: float) -> None:
        """Add time that was measured elsewhere."""
        self._seconds[name] += seconds

    @property
    def is_immediate(self) -> bool:
        """Whether each phase is known when it ends; else only the device knows of some."""
        return self._device_clock is None

    @property
    def evaluation_seconds(self) -> float:
        """Time of evaluations since the last `take`."""
        return self._seconds["evaluation"]

    @property
    def waited_seconds(self) -> float:
        """Time of waits for others since the last `take`."""
        return self._seconds["comm_wait"]

    def take_processor_seconds(self) -> ProcessorUse:
        """Processor time of all threads since the last call."""
        now = time.process_time()
        own = now - self._used_before - self._used_waiting
        use = ProcessorUse(own, self._used_reducing)
        self._used_before = now
        self._used_waiting = self._used_reducing = 0.0
        self._used_at_end = now
        return use

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last `take`; a phase that was not entered is absent.

        Device phases that the device has not passed yet are left for the next call.
        """
        waiting = []
        for name, begin, end in self._open:
            if end.query():
                self._seconds[name] += begin.elapsed_time(end) / 1e3
            else:
                waiting.append((name, begin, end))
        self._open = waiting
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken


class _Block:
    """A phase under way. A class, as a generator takes three times as long, many times a step."""

    __slots__ = ("_clock", "_name", "_start")

    def __init__(self, clock: PhaseClock, name: Phase) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._start = start = time.perf_counter()
        self._clock.current = (self._name, start)

    def __exit__(self, *_: object) -> None:
        self._clock.end(self._name, self._start)
