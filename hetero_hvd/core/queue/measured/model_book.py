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

PATIENCE_SECONDS = 30 * 86400.0
"""For so long a figure counts, and a model that no job trains is kept."""

MAX_MODELS = 20
"""Of a user; those that were trained last."""

MAX_SCRIPTS = 10
"""Of a model."""


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
    """

    user: str
    model: str
    at_seconds: float
    scripts: tuple[str, ...] = ()
    rates: Mapping[str, DatedFigure] = field(default_factory=dict)
    bytes_per_unit: DatedFigure = NOTHING
    hidden_ratio: DatedFigure = NOTHING


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
        user, script = after.user, after.script
        for key, each in list(self._models.items()):
            if now_seconds >= each.at_seconds + PATIENCE_SECONDS:
                del self._models[key]
            elif key != (user, after.model) and each.user == user and script in each.scripts:
                scripts = tuple(name for name in each.scripts if name != script)
                self._models[key] = replace(each, scripts=scripts)
        known = self._models.pop((user, after.model), None)
        known = known or MeasuredModel(user=user, model=after.model, at_seconds=now_seconds)

        def newer(old: DatedFigure, had: float, has: float) -> DatedFigure:
            return old if had == has else DatedFigure(has, now_seconds)

        rates = {k: m for k, m in known.rates.items() if m.now(now_seconds)}
        for kind, rate in after.rates.items():
            rates[kind] = newer(rates.get(kind, NOTHING), before.rates.get(kind, 0.0), rate)
        scripts = (*(name for name in known.scripts if name != script), *filter(None, [script]))
        self._models[user, after.model] = replace(
            known,
            at_seconds=now_seconds,
            scripts=scripts[-MAX_SCRIPTS:],
            rates={kind: each for kind, each in rates.items() if each.value},
            bytes_per_unit=newer(known.bytes_per_unit, before.bytes_per_unit, after.bytes_per_unit),
            hidden_ratio=newer(known.hidden_ratio, before.hidden_ratio, after.hidden_ratio),
        )
        of_user = [key for key in self._models if key[0] == user]
        for key in of_user[:-MAX_MODELS]:
            del self._models[key]
