"""Workers that were left without work, and when to try them again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hetero_hvd.messages import WorkerId


class IdleWorkers:
    """When to measure workers without work again, since only work shows their speed.

    A worker is tried again after a minute, then at intervals that grow fourfold up to an hour; one
    of which only an earlier job knows anything, at once.
    """

    FIRST_SECONDS, GROWTH, LAST_SECONDS, ROWS = 60.0, 4, 3600.0, 4

    def __init__(self) -> None:
        self._due_at_seconds: dict[WorkerId, float] = {}
        self._interval_seconds: dict[WorkerId, float] = {}
        self._rows_left: dict[WorkerId, int] = {}

    @property
    def retried(self) -> Collection[WorkerId]:
        """Workers to give one grain to until they are measured."""
        return self._rows_left.keys()

    def observe(
        self,
        workers: Sequence[WorkerId],
        planned: Sequence[int],
        measured: Sequence[int],
        *,
        unknown: Collection[WorkerId],
        now_seconds: float,
    ) -> None:
        """Take the next table.

        Args:
            workers: Members in rank order.
            planned: Their local batch sizes in the newest plan.
            measured: The same in the table.
            unknown: Workers that this job has not measured yet.
            now_seconds: The caller's clock.
        """
        for worker, share, size in zip(workers, planned, measured, strict=True):
            if worker in self._rows_left:
                self._rows_left[worker] -= size > 0
                if self._rows_left[worker] == 0:
                    del self._rows_left[worker]
            elif share > 0:
                self._due_at_seconds.pop(worker, None)
            else:
                self._wait(worker, now_seconds, is_unknown=worker in unknown)

    def _wait(self, worker: WorkerId, now_seconds: float, *, is_unknown: bool) -> None:
        if is_unknown:
            self._rows_left[worker] = self.ROWS
            return
        interval = self._interval_seconds.setdefault(worker, self.FIRST_SECONDS)
        if now_seconds >= self._due_at_seconds.setdefault(worker, now_seconds + interval):
            self._interval_seconds[worker] = min(interval * self.GROWTH, self.LAST_SECONDS)
            self._rows_left[worker] = self.ROWS
            del self._due_at_seconds[worker]
