"""What `self.log` has added up: held back while a step may be taken again, and put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from lightning.pytorch.utilities.memory import recursive_detach

from hetero_hvd.worker.recovery.replica import loaded, packed

FACTS = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "add_dataloader_idx",
    "dataloader_idx",
    "metric_attribute",
)
"""Fields of Lightning's metadata that another worker needs, to have the same entry."""

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "max": torch.max,
    "min": torch.min,
}


class LoggedCall(NamedTuple):
    """One call of `self.log` in a training step.

    Attributes:
        key: Function and name.
        value: A scalar tensor, or a metric object.
        weight: Samples that it is a mean over.
        named: The other arguments.
    """

    key: tuple[str, str]
    value: Any
    weight: float
    named: dict[str, Any]


class KnownCall(NamedTuple):
    """A call that Lightning has checked.

    Attributes:
        metric: What it has added to.
        named: Its arguments beside the value and its weight.
    """

    metric: _ResultMetric
    named: dict[str, Any]


class StepResults(_ResultCollection):
    """What `training_step` logs counts once for each step that is applied.

    A step may be taken again, and may have several passes. So each pass's values are held back;
    when the step is applied they go on to Lightning as one value.

    Args:
        reduce: The strategy's.
    """

    def __init__(self, reduce: Callable[..., Any]) -> None:
        super().__init__(training=True)
        self._reduce = reduce
        self._held: list[LoggedCall] = []
        self._known: dict[str, KnownCall] = {}
        self._attempt = -1
        self._num_samples: int | None = None

    def begin_pass(self, attempt: int, num_samples: int) -> None:
        """A pass begins; what other attempts at the step have logged is dropped.

        Args:
            attempt: Which one this is.
            num_samples: Of the pass.
        """
        if attempt != self._attempt:
            self._held.clear()
            self._attempt = attempt
        self._num_samples = num_samples

    def end_pass(self) -> None:
        """It is over: what is logged from here on goes straight to Lightning."""
        self._num_samples = None

    def log(self, fx: str, name: str, value: Any, **named: Any) -> None:  # noqa: ANN401
        """See `LightningModule.log`; between passes a value is made that of all workers at once."""
        plain = _plain_ones(named)
        detached = value if plain.get("enable_graph") else recursive_detach(value)
        if self._num_samples is not None:
            weight = plain.pop("batch_size", None) or self._num_samples
            self._held.append(LoggedCall((fx, name), detached, float(weight), plain))
            return
        if plain.get("sync_dist") and not plain.get("rank_zero_only"):
            detached = self._reduce(detached, None, plain["reduce_fx"])
        weight = plain.pop("batch_size", None)
        self._add(fx, name, detached, weight, plain | {"sync_dist": False})

    def drop(self) -> None:
        """Forget what is held."""
        self._held.clear()

    def flush(
        self, gather: Callable[[bytes], list[bytes]] | None, *, some_idle: bool = False
    ) -> None:
        """The step is applied: hand on one value for each name, on all workers at the same place.

        Args:
            gather: Everybody's bytes in rank order; None: there is nobody else.
            some_idle: Whether workers have no part of the step: they cannot know what others log.
        """
        held, self._held = self._held, []
        own: dict[tuple[str, str], list[LoggedCall]] = {}
        for each in held:
            own.setdefault(each.key, []).append(each)
        synced = {}
        for key, calls in own.items():
            if gather is not None and calls[-1].named.get("sync_dist"):
                synced[key] = calls
            else:
                self._hand_on(key, calls[-1].named, *_as_one(calls))
        if gather is not None and (synced or some_idle):
            self._hand_on_synced(synced, gather)

    def _hand_on_synced(
        self, own: dict[tuple[str, str], list[LoggedCall]], gather: Callable[[bytes], list[bytes]]
    ) -> None:
        payload = packed([_plain(key, calls) for key, calls in own.items()])
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for part in gather(payload):
            for each in loaded(part):
                found.setdefault((each["fx"], each["name"]), []).append(each)
        for key, parts in found.items():
            named = parts[0]["named"]
            values = [(each["value"], each["weight"]) for each in parts]
            self._hand_on(key, named, *_combined(values, named["reduce_fx"]))

    def _hand_on(
        self,
        key: tuple[str, str],
        named: dict[str, Any],
        value: Any,  # noqa: ANN401 - a tensor or a metric object
        weight: float,
    ) -> None:
        size = int(weight) if float(weight).is_integer() else weight
        self._add(*key, value, size, named | {"sync_dist": False})

    def _add(
        self,
        fx: str,
        name: str,
        value: Any,  # noqa: ANN401 - a tensor or a metric object
        weight: float | None,
        named: dict[str, Any],
    ) -> None:
        """Lightning's `log`, without what it does anew at each call.

        It moves all that a metric holds to the value's device, wherever that is already: a
        millisecond for a single number.
        """
        key = f"{fx}.{name}"
        known = self._known.get(key)
        if (
            known is not None
            and weight is not None
            and known.metric is self.get(key)
            and known.named == named
            and _is_beside(known.metric, value)
        ):
            known.metric.forward(value, weight)
            known.metric.has_reset = False
            return
        super().log(fx, name, value, batch_size=weight, **named)
        if self.dataloader_idx is None:
            self._known[key] = KnownCall(self[key], named)


def _is_beside(metric: _ResultMetric, value: Any) -> bool:  # noqa: ANN401 - see `LoggedCall`
    """Whether a value can be added to what the metric holds, as both are numbers of one device."""
    is_number = metric.is_tensor and isinstance(value, torch.Tensor)
    return is_number and metric.value.device == value.device


def _as_one(calls: Sequence[LoggedCall]) -> tuple[Any, float]:
    """The values of this worker's passes as one, and its weight."""
    if len(calls) == 1 or not isinstance(calls[-1].value, torch.Tensor):
        return calls[-1].value, calls[-1].weight
    return _combined([(each.value, each.weight) for each in calls], calls[-1].named["reduce_fx"])


def _combined(
    values: Sequence[tuple[torch.Tensor, float]], reduction: str | Callable[..., Any]
) -> tuple[torch.Tensor, float]:
    """Several values of one name as one, and its weight."""
    weight = math.fsum(each for _, each in values)
    if len(values) == 1:
        return values[0][0], weight
    stacked = torch.stack([value for value, _ in values])
    kind = kind_of(reduction)
    if kind == "mean":
        weights = torch.tensor([each for _, each in values], dtype=torch.float64)
        weights = (weights / weight).to(stacked)
        return (stacked * weights).sum(), weight
    return REDUCTIONS[kind](stacked), weight


def kind_of(reduction: str | Callable[..., Any]) -> str:
    """`mean`, `sum`, `max` or `min`, however the script says it."""
    name = reduction.lower() if isinstance(reduction, str) else reduction.__name__
    return "mean" if name == "avg" else name


def _plain(key: tuple[str, str], calls: Sequence[LoggedCall]) -> dict[str, Any]:
    """What another worker needs of this one's values."""
    value, weight = _as_one(calls)
    fx, name = key
    found = {"fx": fx, "name": name, "value": value.cpu(), "weight": weight}
    return found | {"named": calls[-1].named}


def _plain_ones(named: dict[str, Any]) -> dict[str, Any]:
    """What can be told to another worker; the same whoever calls, as Lightning compares it."""
    plain = {
        name: item
        for name, item in named.items()
        if item is None or isinstance(item, bool | int | str)
    }
    return plain | {"reduce_fx": kind_of(named.get("reduce_fx", "mean"))}


# Entries of a collection as plain data.


def entries_of(
    results: _ResultCollection, keys: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """What has been logged since the last reset, as plain data.

    Args:
        results: Lightning's.
        keys: Of the entries that count; None: all.
    """
    wanted = results.keys() if keys is None else set(keys)
    return [
        _entry(key, metric)
        for key, metric in results.items()
        if key in wanted and not metric.has_reset
    ]


def _entry(key: str, metric: _ResultMetric) -> dict[str, Any]:
    meta = metric.meta
    facts = {name: getattr(meta, name) for name in FACTS}
    entry = {"key": key, "facts": facts, "reduction": meta.reduce_fx.__name__}
    if metric.is_tensor:
        entry["value"] = metric.value.detach().cpu()
        if meta.is_mean_reduction:
            entry["weight"] = metric.cumulated_batch_size.cpu()
    return entry


def put_entries(
    results: _ResultCollection,
    parts: Sequence[Sequence[dict[str, Any]]],
    find_metric: Callable[[str], Any],
    device: torch.device,
) -> None:
    """Let a collection hold what several workers have logged, each in its part.

    Args:
        results: Lightning's.
        parts: What `entries_of` gave, in rank order.
        find_metric: Gives the metric object of the module by its place.
        device: Where values belong.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for entry in part:
            found.setdefault(entry["key"], []).append(entry)
    for key, entries in found.items():
        metric = results.get(key)
        if metric is None:
            metric = results[key] = _made(entries[0], find_metric)
            metric.to(device)
        # It is everybody's already, and who had no batch does not know of a `sync_dist`.
        metric.meta.sync = _Sync(fn=_Sync.no_op)
        metric.has_reset = False
        metric._computed = None
        metric._update_count = max(1, metric._update_count)
        if metric.is_tensor:
            metric.value = _added(entries, "value", entries[0]["reduction"]).to(device)
            if metric.meta.is_mean_reduction:
                metric.cumulated_batch_size = _added(entries, "weight", "sum").to(device)


def _added(entries: Sequence[dict[str, Any]], name: str, reduction: str) -> torch.Tensor:
    stacked = torch.stack([each[name] for each in entries])
    return REDUCTIONS["sum" if reduction == "mean" else reduction](stacked)  # type: ignore[no-any-return]


def _made(entry: dict[str, Any], find_metric: Callable[[str], Any]) -> _ResultMetric:
    meta = _Metadata(**entry["facts"], reduce_fx=REDUCTIONS[entry["reduction"]])
    metric = _ResultMetric(meta, is_tensor="value" in entry)
    if not metric.is_tensor:
        metric.value = find_metric(entry["facts"]["metric_attribute"])
    return metric
