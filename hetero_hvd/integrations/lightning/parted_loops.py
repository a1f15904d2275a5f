"""Validation, test and prediction in parts: each worker its batches, all of them the whole result.

Batches are never divided, so that each sample counts once, in the batch of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.loops.prediction_loop import _PredictionLoop
from torch.utils.data import DataLoader, IterableDataset

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.lightning.metrics import ModuleMetrics
from hetero_hvd.integrations.lightning.results import entries_of, put_entries
from hetero_hvd.integrations.steps import numbers
from hetero_hvd.worker.data.share_loader import contiguous_batches
from hetero_hvd.worker.evaluation import PartedEvaluation
from hetero_hvd.worker.recovery.replica import Unreadable, loaded, packed

if TYPE_CHECKING:
    from hetero_hvd.integrations.lightning.strategy import HeteroStrategy


class Parted:
    """What takes the place of a loop's `run`.

    Args:
        strategy: Knows the job.
        loop: Lightning's.
    """

    def __init__(self, strategy: HeteroStrategy, loop: _EvaluationLoop | _PredictionLoop) -> None:
        self._strategy = strategy
        self._loop: Any = loop

    def run(self) -> Any:  # noqa: ANN401 - what the loop gives
        """Go over the sets, this worker over its part of them."""
        loop = self._loop
        with torch.no_grad():
            loop.setup_data()
            if loop.skip:
                return self._nothing
            if not self._can_be_parted():
                return type(loop).run(loop)
            self._strategy.find_role()
            self._prepare()
            loop.on_run_start()
            self._go_over()
            self._complete()
            found = loop.on_run_end()
            self._leave()
            return found

    _nothing: Any = None
    """What is given where there is no batch."""

    def _can_be_parted(self) -> bool:
        """Whether this is a sequence of loaders of known length."""
        combined = self._loop._combined_loader
        return combined._mode == "sequential" and all(
            isinstance(each, DataLoader) and not isinstance(each.dataset, IterableDataset)
            for each in combined.flattened
        )

    def _prepare(self) -> None:
        """As the loop's own `reset`, which would open iterators over the whole sets."""
        loop = self._loop
        self._num_before = loop.batch_progress.total.completed
        loop.batch_progress.reset_on_run()
        loop._data_fetcher = _PrefetchDataFetcher()

    def _go_over(self) -> None:
        """All workers together where a training has begun, else each by itself."""
        steps, trainer = self._strategy.steps, self._loop.trainer
        if steps is None or trainer.sanity_checking:
            self._part([1], 0, lambda: None)
            self._put([self._result()])
            return
        self._is_merged = False
        found = steps.find(PartedEvaluation(self._packed_part, self._merge))
        if not self._is_merged:
            self._take(found)

    def _packed_part(
        self, shares: Sequence[int], rank: int, before_each: Callable[[], object]
    ) -> bytes:
        self._part(shares, rank, before_each)
        return packed(self._result())

    def _merge(self, parts: Sequence[bytes]) -> dict[str, float]:
        self._is_merged = True
        return self._put([self._unpacked(part) for part in parts])

    def _unpacked(self, part: bytes) -> Any:  # noqa: ANN401 - what `_result` gave
        try:
            return loaded(part)
        except Unreadable as error:
            raise UserError(
                f"what predict_step returns cannot go to the other workers: {error}: return "
                "tensors in plain containers, or say return_predictions=False"
            ) from error

    def _part(self, shares: Sequence[int], rank: int, before_each: Callable[[], object]) -> None:
        """This worker's batches of each set, from a clean state."""
        loop = self._loop
        self._clear()
        # Here alone: what is told to other workers must be ordinary tensors.
        context = torch.inference_mode if loop.inference_mode else torch.no_grad
        with self._strategy.in_part(), context():
            for index, loader in enumerate(loop._combined_loader.flattened):
                for number, batch in self._batches(loader, shares, rank, index):
                    before_each()
                    self._step(batch, number, index)
                loop.trainer._logger_connector.epoch_end_reached()

    def _batches(
        self, loader: DataLoader[Any], shares: Sequence[int], rank: int, index: int
    ) -> Iterator[tuple[int, Any]]:
        limit = self._loop.max_batches[index]
        if not limit:
            return
        for number, _, batch in contiguous_batches(
            loader, shares, rank, whole_batches=True, num_batches=int(limit)
        ):
            yield number, batch

    def _complete(self) -> None:
        """All batches count, whoever has gone over them."""
        progress, total = self._loop.batch_progress, sum(map(int, self._loop.max_batches))
        for tracker, count in (
            (progress.current, total),
            (progress.total, self._num_before + total),
        ):
            for name in ("ready", "started", "processed", "completed"):
                setattr(tracker, name, count)
        progress.is_last_batch = True

    def _leave(self) -> None:
        """The hooks at the end have run."""

    # What differs between an evaluation and a prediction.

    def _clear(self) -> None:
        raise NotImplementedError

    def _step(self, batch: Any, number: int, index: int) -> None:  # noqa: ANN401
        raise NotImplementedError

    def _result(self) -> Any:  # noqa: ANN401 - plain data
        raise NotImplementedError

    def _put(self, parts: Sequence[Any]) -> dict[str, float]:
        raise NotImplementedError

    def _take(self, found: dict[str, float]) -> None:
        raise NotImplementedError


class PartedLoop(Parted):
    """Validation or test."""

    _nothing = ()

    def run(self) -> list[dict[str, Any]]:
        """See `Parted`; what was logged, for each loader."""
        return list(super().run())

    def _prepare(self) -> None:
        super()._prepare()
        loop, trainer = self._loop, self._loop.trainer
        loop._has_run = not trainer.sanity_checking
        loop._logged_outputs = []
        self._metrics = ModuleMetrics(trainer.lightning_module)
        self._other_keys: set[str] = set()

    def _go_over(self) -> None:
        results = self._loop._results
        self._other_keys = {key for key, metric in results.items() if not metric.has_reset}
        self._before = self._metrics.take()
        self._merged: set[str] = set()
        super()._go_over()
        for index in range(self._loop.num_dataloaders):
            self._choose(index)
            self._loop._store_dataloader_outputs()

    def _clear(self) -> None:
        self._metrics.take()
        results = self._loop._results
        for key in results.keys() - self._other_keys:
            del results[key]

    def _step(self, batch: Any, number: int, index: int) -> None:  # noqa: ANN401
        self._loop.batch_progress.is_last_batch = False
        self._loop._evaluation_step(batch, number, index, None)

    def _result(self) -> dict[str, Any]:
        results = self._loop._results
        keys = results.keys() - self._other_keys
        found = self._metrics.take()
        before = {name: state for name, state in self._before.items() if name in found}
        return {"logged": entries_of(results, keys), "metrics": found, "before": before}

    def _put(self, parts: Sequence[Any]) -> dict[str, float]:
        results, device = self._loop._results, self._strategy.root_device
        states = [each[name] for each in parts for name in ("before", "metrics")]
        self._merged = self._metrics.put(states)
        self._restore(self._merged)
        put_entries(results, [each["logged"] for each in parts], self._metrics.find, device)
        found: dict[str, float] = {}
        for index in range(self._loop.num_dataloaders):
            self._choose(index)
            found |= numbers(results.metrics(on_step=False)["callback"])
        return found

    def _take(self, found: dict[str, float]) -> None:
        """The others were through with it when this worker came."""
        self._restore(set())
        connector = self._loop.trainer._logger_connector
        values = {name: torch.tensor(value) for name, value in found.items()}
        connector._callback_metrics.update(values)
        connector._logged_metrics.update(values)
        self._loop._logged_outputs.append(values)

    def _restore(self, merged: set[str]) -> None:
        """Metrics that only training uses have what they had."""
        kept = {name: state for name, state in self._before.items() if name not in merged}
        self._metrics.put([kept])

    def _leave(self) -> None:
        """What nobody has reset is kept by the leader alone: the next time it counts once."""
        if self._strategy.world_size > 1 and not self._strategy.is_global_zero:
            self._metrics.reset(self._merged)

    def _choose(self, index: int) -> None:
        """What is asked for from here on is of this loader."""
        several = self._loop._is_sequential and self._loop.num_dataloaders > 1
        self._loop._results.dataloader_idx = index if several else None


class PartedPrediction(Parted):
    """Predictions: all workers get all of them, in the sets' order."""

    def _prepare(self) -> None:
        super()._prepare()
        self._clear()

    def _clear(self) -> None:
        loop = self._loop
        loop.epoch_batch_indices = [[] for _ in range(loop.num_dataloaders)]
        loop._predictions = [[] for _ in range(loop.num_dataloaders)]

    def _step(self, batch: Any, number: int, index: int) -> None:  # noqa: ANN401
        self._loop.batch_progress.is_last_batch = False
        self._loop._predict_step(batch, number, index, None)

    def _result(self) -> dict[str, Any]:
        return {
            "predictions": self._loop._predictions,
            "indices": self._loop.epoch_batch_indices,
        }

    def _put(self, parts: Sequence[Any]) -> dict[str, float]:
        self._clear()
        for part in parts:
            for index, (found, indices) in enumerate(
                zip(part["predictions"], part["indices"], strict=True)
            ):
                self._loop._predictions[index] += found
                self._loop.epoch_batch_indices[index] += indices
        return {"predicted_batches": float(sum(map(len, self._loop._predictions)))}

    def _take(self, found: dict[str, float]) -> None:  # noqa: ARG002 - there are none
        """The others were through with it when this worker came: it predicts by itself."""
        self._part([1], 0, lambda: None)
