"""What jobs have measured of their models, so that the next job of one starts from it.

Before a job runs, only its user and its script are known: it is taken to train what that script
trained last. As soon as its driver tells the model, that counts. A user's jobs change what is known
for this user alone.

What was measured lapses, else a kind of device that was slow once would never be used again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.measured.measured_trial import MeasuredTrial

PATIENCE_SECONDS = 30 * 86400.0
"""For so long a figure counts, and a model that no job trains is kept."""

MAX_MODELS = 20
"""Of a user; those that were trained last."""

MAX_SCRIPTS = 10
"""Of a model."""

MAX_TRIALS = 5
"""Of a model, of other batches or nodes; the newest."""


class DatedFigure(NamedTuple):
    """A figure, and when it was measured, on the queue's clock."""

    value: float
    at_seconds: float

    def now(self, now_seconds: float) -> float:
        """The figure; 0: it does not count any more."""
        return self.value if now_seconds < self.at_seconds + PATIENCE_SECONDS else 0.0


NOTHING = DatedFigure(0.0, -math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModel:
    """What one user's jobs have shown of a model.

    Attributes:
        user: Whose jobs.
        model: See `JobRequest`.
        at_seconds: When it was trained last, on the queue's clock.
        scripts: Those that trained it last, see `JobRequest`, the newest at the end.
        rates: Kind of device to units of work per second.
        bytes_per_unit: See `JobRequest`.
        hidden_ratio: See `JobRequest`.
        trials: Of sets of nodes, the newest at the end.
    """

    user: str
    model: str
    at_seconds: float
    scripts: tuple[str, ...] = ()
    rates: Mapping[str, DatedFigure] = field(default_factory=dict)
    bytes_per_unit: DatedFigure = NOTHING
    hidden_ratio: DatedFigure = NOTHING
    trials: tuple[MeasuredTrial, ...] = ()


class ModelBook:
    """Models of all users, as far as they were measured.

    Args:
        found: What another one knew.
    """

    def __init__(self, found: Iterable[MeasuredModel] = ()) -> None:
        self._models = {(each.user, each.model): each for each in found}

    @property
    def facts(self) -> tuple[MeasuredModel, ...]:
        """All that it knows; what was trained last is at the end."""
        return tuple(self._models.values())

    def expected(self, request: JobRequest, now_seconds: float) -> JobRequest:
        """What was submitted, with what is known of the model that its script trained last."""
        if not request.script or not request.is_shrinkable:
            return request
        for each in reversed(self._models.values()):
            if each.user == request.user and request.script in each.scripts:
                return self.told(request, each.model, now_seconds)
        return request

    def told(self, request: JobRequest, model: str, now_seconds: float) -> JobRequest:
        """What was submitted, with what is known of a model instead of that of another one."""
        if request.model:  # the figures are that one's
            nothing: dict[str, float] = {}
            request = replace(
                request, rates=nothing, model_rates=nothing, bytes_per_unit=0.0, hidden_ratio=0.0
            )
        request = self.tried(request, model, now_seconds)
        known = self._models.get((request.user, model))
        if known is None:
            return replace(request, model=model)
        rates = {kind: each.now(now_seconds) for kind, each in known.rates.items()}
        return replace(
            request,
            model=model,
            model_rates={kind: rate for kind, rate in rates.items() if rate},
            bytes_per_unit=request.bytes_per_unit or known.bytes_per_unit.now(now_seconds),
            hidden_ratio=request.hidden_ratio or known.hidden_ratio.now(now_seconds),
        )

    def tried(
        self, request: JobRequest, model: str, now_seconds: float, global_batch_size: int = 0
    ) -> JobRequest:
        """What was submitted, with the newest trial of a model that counts for it.

        Args:
            request: Of the job.
            model: That it trains.
            now_seconds: On the queue's clock.
            global_batch_size: That it has told; 0: it has not, and the newest trial's is expected.
        """
        known = self._models.get((request.user, model))
        trials = () if known is None else known.trials
        young = [each for each in trials if now_seconds < each.at_seconds + PATIENCE_SECONDS]
        like = [each for each in young if global_batch_size in (0, each.global_batch_size)]
        if like:
            return replace(request, trial=like[-1], trial_words="")
        words = request.trial_words
        if young:
            other = young[-1]
            words = f"the trial of {other.run} had batches of {other.global_batch_size} samples"
        elif request.trial is not None:
            words = f"the trial of {request.trial.run} was of another model"
        return replace(request, trial=None, trial_words=words)

    def note_trial(self, user: str, script: str, model: str, trial: MeasuredTrial) -> None:
        """Take in a trial that a user has made, unless it is known.

        Args:
            user: Who.
            script: With which; a job of it is taken to train this model next, if none of its jobs
                has trained another one since.
            model: See `JobRequest`.
            trial: What was measured.
        """
        key = user, model
        is_newest = all(
            each.at_seconds <= trial.at_seconds
            for each in self._models.values()
            if each.user == user and script in each.scripts
        )
        known = self._models.get(key)
        known = known or MeasuredModel(user=user, model=model, at_seconds=trial.at_seconds)
        others = [each for each in known.trials if _what(each) != _what(trial)]
        if any(each.at_seconds >= trial.at_seconds for each in known.trials if each not in others):
            return
        trials = sorted([*others, trial], key=lambda each: each.at_seconds)[-MAX_TRIALS:]
        self._models[key] = replace(known, trials=tuple(trials))
        if is_newest:
            self._trained_last(key, script, trial.at_seconds)
        self._forget_the_oldest(user)

    def note(self, before: JobRequest, after: JobRequest, now_seconds: float) -> None:
        """Take in what a job has measured.

        Args:
            before: What was known of it; only what differs is new, the rest may be older than what
                another job has measured meanwhile.
            after: What is known of it now. Of one whose model is not told nothing is kept.
            now_seconds: On the queue's clock.
        """
        if not after.model:
            return
        key = after.user, after.model
        for old, each in list(self._models.items()):
            if now_seconds >= each.at_seconds + PATIENCE_SECONDS:
                del self._models[old]
        if key not in self._models:
            self._models[key] = MeasuredModel(
                user=after.user, model=after.model, at_seconds=now_seconds
            )
        self._trained_last(key, after.script, now_seconds)
        known = self._models[key]

        def newer(old: DatedFigure, had: float, has: float) -> DatedFigure:
            return old if had == has else DatedFigure(has, now_seconds)

        rates = {k: m for k, m in known.rates.items() if m.now(now_seconds)}
        for kind, rate in after.rates.items():
            rates[kind] = newer(rates.get(kind, NOTHING), before.rates.get(kind, 0.0), rate)
        self._models[key] = replace(
            known,
            rates={kind: each for kind, each in rates.items() if each.value},
            bytes_per_unit=newer(known.bytes_per_unit, before.bytes_per_unit, after.bytes_per_unit),
            hidden_ratio=newer(known.hidden_ratio, before.hidden_ratio, after.hidden_ratio),
        )
        self._forget_the_oldest(after.user)

    def _trained_last(self, key: tuple[str, str], script: str, at_seconds: float) -> None:
        """A script trains this model now, and no other."""
        for other, each in list(self._models.items()):
            if other[0] == key[0] and script in each.scripts:
                scripts = tuple(name for name in each.scripts if name != script)
                self._models[other] = replace(each, scripts=scripts)
        known = self._models.pop(key)
        scripts = (*known.scripts, *filter(None, [script]))[-MAX_SCRIPTS:]
        at_seconds = max(at_seconds, known.at_seconds)
        self._models[key] = replace(known, at_seconds=at_seconds, scripts=scripts)

    def _forget_the_oldest(self, user: str) -> None:
        of_user = [key for key in self._models if key[0] == user]
        for key in of_user[:-MAX_MODELS]:
            del self._models[key]


def _what(trial: MeasuredTrial) -> tuple[int, tuple[tuple[str, int], ...]]:
    """A newer trial of the same takes its place."""
    return trial.global_batch_size, tuple(sorted(trial.workers.items()))
