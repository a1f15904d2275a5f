"""A sink beside a job: a thread and a bounded queue, so that it delays no step whatever it does."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from hetero_hvd.core.step_table import Observed
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.messages import RunEnded, RunStarted
from hetero_hvd.run.sinks.sample import LiveSamples, Sample
from hetero_hvd.run.sinks.sink import Sink, open_sink, shown, told

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Events and intervals that may wait for a sink; further ones are counted and left out."""

CLOSE_SECONDS = 5.0
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0

_Item = RunEnded | list[Sample]


class SinkObserver:
    """Hands a run's samples to one sink; an observer of the bus. Its thread starts with the run.

    Args:
        url: Of the sink.
        say: Tells people, from its thread, that something is left out.
        max_waiting: See `MAX_WAITING`.

    Attributes:
        num_lost: Samples left out, because the sink did not take them or did not keep up.

    Raises:
        UserError: There is no such sink, or what it needs is not installed.
    """

    def __init__(
        self,
        url: str,
        say: Callable[[str], None] = logger.warning,
        *,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._url = url
        self._say = say
        self._sink: Sink | None = open_sink(url)
        self._samples = LiveSamples()
        self._queue: queue.Queue[_Item] = queue.Queue(max_waiting)
        self._thread: threading.Thread | None = None
        self._started: RunStarted | None = None
        self._is_open = self._is_told = self._is_given_up = False
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._num_in_hand = 0
        self.num_lost = 0

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Take an event; never blocks."""
        if isinstance(event, RunStarted):
            self._thread = threading.Thread(target=self._work, args=(event,), daemon=True)
            self._thread.start()
        elif self._thread is not None:
            samples = list(self._samples.take(at_unix_seconds, event))
            if isinstance(event, RunEnded):
                samples += self._samples.rest()
            if samples:
                self._put(samples)
            if isinstance(event, RunEnded):
                while not self._put(event):  # whatever waits: the sink must be closed
                    with suppress(queue.Empty):
                        self._lose(self._queue.get_nowait())

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Let it write what waits, for so long at most; tell how much is left out."""
        if self._thread is None:
            return
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self._is_given_up = True
            self.num_lost += self._num_in_hand
            while not self._queue.empty():
                with suppress(queue.Empty):
                    self._lose(self._queue.get_nowait())
            self._say(f"export to {shown(self._url)} has not ended: what it has may be incomplete")
        if self.num_lost:
            self._say(
                f"export to {shown(self._url)}: {self.num_lost} samples were left out; the record "
                "has them: hetero-hvd export RUN --to URL"
            )

    def _put(self, item: _Item) -> bool:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._lose(item)
            self._tell(f"export to {shown(self._url)} does not keep up")
            return False
        return True

    def _lose(self, item: _Item) -> None:
        self.num_lost += len(item) if isinstance(item, list) else 0

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(f"{why}; the training goes on, what is left out there is counted")

    def _work(self, started: RunStarted) -> None:
        self._started = started
        self._try([])
        while not self._is_given_up:
            item = self._queue.get()
            if isinstance(item, list):
                self._try(item)
            else:
                self._end(item.reason)
                return

    def _try(self, samples: Sequence[Sample]) -> None:
        """Hand them over; where that fails, try again until the sink is given up or has them."""
        self._num_in_hand = len(samples)
        while self._sink is not None and not self._is_given_up:
            try:
                self._hand_over(samples)
            except UserError as error:
                self._failed(error)
            except BrokenPipeError:  # a command ends quietly there; here it is one sink of a job
                self._failed(JobError(f"export to {shown(self._url)}: nobody reads it any more"))
            else:
                self._num_in_hand = 0
                return
        if not self._is_given_up:  # else `close` has counted them
            self.num_lost += len(samples)

    def _hand_over(self, samples: Sequence[Sample]) -> None:
        if self._sink is None or self._started is None:
            return
        with told(self._url):
            if not self._is_open:
                self._sink.begin(self._started)
                self._is_open = True
            if samples:
                self._sink.write(samples)
        self._retry_seconds = FIRST_RETRY_SECONDS

    def _failed(self, error: UserError) -> None:
        self._tell(str(error))
        logger.info("%s", error)
        resumes = self._sink is not None and self._sink.resumes
        self._is_open = False
        self._sink = None
        if resumes:
            time.sleep(self._retry_seconds)
            self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)
            with suppress(JobError):
                self._sink = open_sink(self._url)

    def _end(self, state: str) -> None:
        if self._sink is not None and self._is_open:
            try:
                with told(self._url):
                    self._sink.end(state)
            except JobError as error:
                self._tell(str(error))


def close_all(observers: Sequence[SinkObserver]) -> None:
    """Close them, in the time of one."""
    deadline = time.monotonic() + CLOSE_SECONDS
    for observer in observers:
        observer.close(max(0.0, deadline - time.monotonic()))
