"""Evaluation in parts: each worker predicts its batches, all see the predictions in order.

Batches are never divided, so that they are those of one process, and so is each number that is made
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput

from hetero_hvd.data.streams.stream_shards import check_places
from hetero_hvd.errors import UserError
from hetero_hvd.integrations.steps import Steps, numbers
from hetero_hvd.worker.data.share_loader import contiguous_batches
from hetero_hvd.worker.evaluation import PartedEvaluation, evaluating
from hetero_hvd.worker.recovery import replica


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What one batch gave, in the host's memory.

    Attributes:
        num_samples: Samples in it.
        loss: Mean over it; None: there are no labels.
        logits: What the model gave, after `preprocess_logits_for_metrics`; None: nobody needs it.
        labels: What it should have given, as the batch has it.
        inputs: The batch itself; empty unless the metrics want it.
    """

    num_samples: int
    loss: torch.Tensor | None
    logits: Any
    labels: Any
    inputs: dict[str, Any]

    def as_batch(self, main_input: str) -> dict[str, Any]:
        """What stands for the batch where predictions are replayed: as many samples."""
        return self.inputs or {main_input: torch.empty(self.num_samples, 0)}


def num_samples_of(batch: Any) -> int:  # noqa: ANN401 - whatever the collator gives
    """Samples in a batch.

    Raises:
        UserError: It has no tensor.
    """
    found = find_batch_size(batch)
    if found is None:
        raise UserError("a batch has no tensor in it: its samples cannot be counted")
    return int(found)


def to_host(value: Any) -> Any:  # noqa: ANN401 - tensors in any nesting
    """The same in the host's memory, without gradients."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: to_host(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(to_host, value))
    return value


def packed(predictions: Sequence[Prediction]) -> bytes:
    """Predictions as bytes."""
    return replica.packed([vars(each) for each in predictions])


def unpacked(payload: bytes) -> list[Prediction]:
    """The inverse of `packed`; nothing is unpickled that could run.

    Raises:
        UserError: The model's outputs are more than tensors in plain containers.
    """
    try:
        return [Prediction(**fields) for fields in replica.loaded(payload)]
    except replica.Unreadable as error:
        raise UserError(
            f"the model's outputs cannot go to the other workers: {error}: name what the metrics "
            "do not need in ignore_keys, or give preprocess_logits_for_metrics"
        ) from error


class Replay(DataLoaderStateMixin):  # type: ignore[misc]  # accelerate has no types
    """A loader that hands out what was predicted, so that transformers makes the metrics of it.

    Args:
        predictions: Of the whole set, in order.
        dataset: The set.
        batch_size: Of the loader that it stands for.
        main_input: Name of the model's main input.
    """

    _drop_last = False

    def __init__(
        self,
        predictions: Sequence[Prediction],
        dataset: Any,  # noqa: ANN401 - whatever torch accepts
        batch_size: int,
        main_input: str,
    ) -> None:
        self.gradient_state = GradientState()
        self.dataset = dataset
        self.total_batch_size = batch_size
        self._predictions = predictions
        self._main_input = main_input
        self._current: Prediction | None = None

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._predictions)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One batch for each prediction."""
        self.begin()
        for number, each in enumerate(self._predictions, 1):
            self.end_of_dataloader = number == len(self._predictions)
            self._current = each
            yield each.as_batch(self._main_input)
        self.end()

    def prediction_step(self, *_: object, **__: object) -> tuple[Any, Any, Any]:
        """What takes the place of `Trainer.prediction_step` meanwhile."""
        found = self._current
        return (None, None, None) if found is None else (found.loss, found.logits, found.labels)


@dataclass(frozen=True)
class PredictionOptions:
    """What `evaluation_loop` is told beside the set.

    Attributes:
        loss_only: Whether the losses are enough.
        ignore_keys: Outputs of the model that nobody needs.
        prefix: Of the metrics' names.
    """

    loss_only: bool | None
    ignore_keys: list[str] | None
    prefix: str


class TrainerWithParts(transformers.Trainer):
    """Evaluates and predicts in parts, one on each worker; see `HuggingFaceTrainer`.

    Attributes:
        model: What is trained.
        optimizer: None before training.
        lr_scheduler: None before training.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any
    preprocess_logits_for_metrics: Any
    _steps: Steps
    _has_steps: bool
    _is_alone: bool

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:  # noqa: ANN401 - as in transformers
        """As there; an order that is drawn is drawn once, as it is asked for by part."""
        sampler: Any = super()._get_eval_sampler(eval_dataset)
        is_drawn = sampler is not None and not isinstance(sampler, SequentialSampler)
        return list(sampler) if is_drawn else sampler

    def _check_sets(self, trained: object) -> None:
        """Before training: refuse a set that it, or its evaluations, could not read in parts."""
        found, sets = self.eval_dataset, {"train_dataset": trained}
        if self.args.eval_strategy != "no":
            named = found if isinstance(found, dict) else {}
            sets |= {f"eval_dataset[{name!r}]": each for name, each in named.items()}
            sets["eval_dataset"] = found
        for name, each in sets.items():
            check_places(each, name, is_alone=self._is_alone)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Predictions of the whole set in order, and the metrics that are made of them.

        Each worker predicts a part of the batches. Before training, and alone where a set has no
        length, each goes over the whole set.

        Raises:
            UserError: The set is a stream, and this is a job.
        """
        check_places(dataloader.dataset, description, is_alone=self._is_alone)
        if prediction_loss_only is None:
            prediction_loss_only = self.args.prediction_loss_only
        options = PredictionOptions(prediction_loss_only, ignore_keys, metric_key_prefix)
        dataset: Any = dataloader.dataset
        if not self._has_steps or isinstance(dataset, IterableDataset):
            return self._transformers_loop(dataloader, description, options)
        outputs: list[EvalLoopOutput] = []

        def merge(parts: Sequence[bytes]) -> dict[str, float]:
            found = [each for part in parts for each in unpacked(part)]
            outputs.append(self._replay(found, dataloader, description, options))
            return numbers(outputs[-1].metrics or {})

        part = partial(self._predict_part, dataloader, options)
        metrics: Any = self._steps.find(PartedEvaluation(part, merge))
        if outputs:
            return outputs[-1]
        return EvalLoopOutput(None, None, dict(metrics), len(dataset))  # type: ignore[arg-type]

    def _transformers_loop(
        self,
        loader: Any,  # noqa: ANN401 - a loader of torch's, or `Replay`
        description: str,
        options: PredictionOptions,
    ) -> EvalLoopOutput:
        return super().evaluation_loop(
            loader, description, options.loss_only, options.ignore_keys, options.prefix
        )

    def _predict_part(
        self,
        loader: DataLoader[Any],
        options: PredictionOptions,
        shares: Sequence[int],
        rank: int,
        before_each: Callable[[], object],
    ) -> bytes:
        """What this worker's part of the batches gives, for `unpacked`."""
        model = self.accelerator.prepare_model(self.model, evaluation_mode=True)
        if not self.is_in_train and (half := self._half_precision()):
            model = model.to(dtype=half)
        found = []
        with evaluating(self.model), self._evaluating_optimizer():
            for _, size, batch in contiguous_batches(loader, shares, rank, whole_batches=True):
                before_each()
                found.append(self._predict(model, batch, size, options))
        return packed(found)

    def _half_precision(self) -> torch.dtype | None:
        """To which transformers converts, for good, a model evaluated outside of training."""
        if self.args.fp16_full_eval:
            return torch.float16
        return torch.bfloat16 if self.args.bf16_full_eval else None

    def _predict(
        self, model: torch.nn.Module, batch: dict[str, Any], size: int, options: PredictionOptions
    ) -> Prediction:
        loss_only = bool(options.loss_only)
        found = self.prediction_step(model, batch, loss_only, options.ignore_keys)
        loss, logits, labels = found
        if self.preprocess_logits_for_metrics is not None and logits is not None:
            logits = self.preprocess_logits_for_metrics(logits, labels)
        inputs = dict(batch) if "inputs" in self.args.include_for_metrics else {}
        fields = {"loss": loss, "logits": logits, "labels": labels, "inputs": inputs}
        return Prediction(num_samples=size, **to_host(fields))

    @contextmanager
    def _evaluating_optimizer(self) -> Iterator[None]:
        """Optimizers that train other parameters than they evaluate have two modes as well."""
        has_modes = callable(getattr(self.optimizer, "eval", None))
        if has_modes:
            self.optimizer.eval()
        try:
            yield
        finally:
            if has_modes:
                self.optimizer.train()

    def _replay(
        self,
        predictions: Sequence[Prediction],
        loader: DataLoader[Any],
        description: str,
        options: PredictionOptions,
    ) -> EvalLoopOutput:
        """Let transformers make arrays and metrics of predictions that are there already."""
        main_input = getattr(self.model, "main_input_name", "input_ids")
        size = loader.batch_size or self.args.eval_batch_size
        replay = Replay(predictions, loader.dataset, size, main_input)
        preprocess = self.preprocess_logits_for_metrics
        self.preprocess_logits_for_metrics = None
        vars(self)["prediction_step"] = replay.prediction_step
        try:
            return self._transformers_loop(replay, description, options)
        finally:
            del vars(self)["prediction_step"]
            self.preprocess_logits_for_metrics = preprocess
