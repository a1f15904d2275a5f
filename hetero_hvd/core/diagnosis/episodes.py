"""The times in which workers were slower than they should be, as a run's judge keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hetero_hvd.core.diagnosis.findings import Episode
from hetero_hvd.messages import WorkerId

MAX_EPISODES = 20
"""So many that are over are kept one by one; of older ones only the sums."""

MAX_CHARGED = 40
"""More exchanges than those after which a worker is told to be well again."""


class Episodes:
    """In the order in which they were told; of each worker one may last."""

    def __init__(self) -> None:
        self._kept: list[Episode] = []
        self._sums: dict[tuple[object, ...], Episode] = {}

    @property
    def workers(self) -> set[WorkerId]:
        """Who was ever slow, as far as its episodes are kept one by one."""
        return {episode.worker for episode in self._kept}

    @property
    def lasting(self) -> list[Episode]:
        """Those that are not over."""
        return [episode for episode in self._kept if episode.until_step is None]

    def recent(self, oldest_exchange: int) -> list[Episode]:
        """Those that last, and those that have ended after an exchange."""
        return [
            episode
            for episode in self._kept
            if episode.until_step is None or episode.until_exchange > oldest_exchange
        ]

    def whole(self) -> list[Episode]:
        """All, with those that are over added up by worker and cause."""
        found = dict(self._sums)
        for episode in self._kept:
            is_past = episode.until_step is not None
            key = (episode.worker, episode.cause) if is_past else (id(episode),)
            found[key] = _together(found[key], episode) if key in found else episode
        return list(found.values())

    def keep(self, episode: Episode) -> None:
        """One that was told now."""
        self._kept.append(episode)
        past = [each for each in self._kept if each.until_step is not None]
        if len(past) > MAX_EPISODES:
            self._kept.remove(past[0])
            key = past[0].worker, past[0].cause
            before = self._sums.get(key)
            self._sums[key] = _together(before, past[0]) if before else past[0]

    def going_on(self, worker: WorkerId, since_step: int) -> Episode | None:
        """What a worker that is slow since a step was told of before, if it was never well since.

        Its timings may have been missing for a while.
        """
        newest = next((each for each in reversed(self._kept) if each.worker == worker), None)
        if newest is None or newest.until_step is None:
            return newest
        return newest if newest.is_interrupted and since_step <= newest.until_step else None

    def end(
        self,
        workers: Iterable[WorkerId],
        step: int,
        exchange: int,
        *,
        is_interrupted: bool = False,
    ) -> None:
        """What is slow of these workers is over; what was charged from then on it did not cost.

        Args:
            workers: Whose.
            step: The first after it.
            exchange: Number of the newest one.
            is_interrupted: Whether only their timings are missing, so that it may go on.
        """
        of_workers = set(workers)
        for episode in self._kept:
            if episode.worker not in of_workers:
                continue
            if episode.until_step is None:
                episode.until_step = max(step, episode.since_step)
                episode.until_exchange = exchange
                if episode.charged:
                    before = [seconds for at, seconds in episode.charged if at < step]
                    episode.cost_seconds = before[-1] if before else episode.charged[0][1]
                episode.is_interrupted = is_interrupted
            else:
                episode.is_interrupted = False


def _together(before: Episode, episode: Episode) -> Episode:
    """Two spells of the same kind, which are over, as one."""
    return replace(
        episode,
        since_step=before.since_step,
        speed_ratio=min(before.speed_ratio, episode.speed_ratio),
        cost_seconds=before.cost_seconds + episode.cost_seconds,
        num_spells=before.num_spells + 1,
    )
