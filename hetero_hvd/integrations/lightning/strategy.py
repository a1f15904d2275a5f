"""Lightning's strategy: who leads, what the workers tell each other, and whose loops run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch.strategies import Strategy
from lightning_utilities.core.rank_zero import rank_zero_only
from torch.optim import Optimizer

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.lightning.fit import Fit
from hetero_hvd.integrations.lightning.loader import TrainingSet, check_divisible
from hetero_hvd.integrations.lightning.parted_loops import PartedLoop, PartedPrediction
from hetero_hvd.integrations.lightning.results import REDUCTIONS
from hetero_hvd.integrations.lightning.trainer_arguments import ONE_OPTIMIZER, check_trainer
from hetero_hvd.integrations.packages import LIGHTNING
from hetero_hvd.integrations.steps import (
    IN_PARTS,
    ShardOptimizer,
    Steps,
    check_job,
    check_shard_optimizer,
    checked_state,
    numbers,
)
from hetero_hvd.worker.model.sync_batch_norm import convert_sync_batch_norm
from hetero_hvd.worker.recovery.replica import loaded, packed
from hetero_hvd.worker.session.launch_settings import is_alone
from hetero_hvd.worker.session.worker_context import device

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Anything = TypeVar("Anything")


class HeteroStrategy(Strategy):
    """Trains a LightningModule on all workers of the job, whatever their number, speed and fate.

    The loader's `batch_size` is that of the batch which all workers divide: each gets a part that
    fits its speed. Losses and metrics are those of one process. See docs/guide/lightning.md.

    Example:
        trainer = Trainer(strategy=HeteroStrategy(), max_epochs=10)
        trainer.fit(module, loader)

    Args:
        seed: Seed of the data order, >= 0, the same on all workers.
        shard_optimizer: As for `hetero_hvd.Trainer`, see docs/guide/large-models.md. What Lightning
            saves must be the weights alone then.

    Raises:
        UserError: There is no such value, or the job trains in a mode whose steps Lightning cannot
            count.
    """

    strategy_name = "hetero_hvd"
    is_distributed = True
    """Lightning asks: else it would leave out `sync_dist`."""

    def __init__(self, *, seed: int = 0, shard_optimizer: ShardOptimizer = False) -> None:
        LIGHTNING.warn()
        check_job("Lightning")
        check_shard_optimizer(shard_optimizer)
        super().__init__()
        self.seed = seed
        self.shard_optimizer = shard_optimizer
        self.local_rank = 0
        self._device = device()
        self._steps: Steps | None = None
        self._leads = is_alone()
        self._fit: Fit | None = None
        self._are_together = self._is_in_part = False
        _tell_role(leads=self._leads)

    # Who leads, and where this worker is.

    @property
    def root_device(self) -> torch.device:
        """That of the worker's slot."""
        return self._device

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker does what is to be done once; may change with the membership."""
        return self._leads

    @property
    def global_rank(self) -> int:
        """0 on the leader, 1 elsewhere: ranks are given anew with each membership."""
        return 0 if self._leads else 1

    @property
    def world_size(self) -> int:
        """Workers of the job at this moment; 1 before training."""
        return 1 if self._steps is None else self._steps.world_size

    @property
    def steps(self) -> Steps | None:
        """Of the last training that has begun."""
        return self._steps

    def begin(self, steps: Steps) -> None:
        """This worker is admitted to a training."""
        self._steps = steps

    def find_role(self) -> bool:
        """See who leads; gives whether this worker does so from now on."""
        leads = self._leads if self._steps is None else self._steps.is_leader
        if leads == self._leads:
            return False
        self._leads = leads
        _tell_role(leads=leads)
        return leads

    # What the workers tell each other, where all of them are at the same place.

    @contextmanager
    def together(self) -> Iterator[None]:
        """All workers are at the same place: what asks for all of them gets an answer."""
        before, self._are_together = self._are_together, self.world_size > 1
        try:
            yield
        finally:
            self._are_together = before

    @contextmanager
    def in_part(self) -> Iterator[None]:
        """Each worker goes over its part of something: nobody waits for another one."""
        before = self._are_together, self._is_in_part
        self._are_together = False
        self._is_in_part = self.world_size > 1
        try:
            yield
        finally:
            self._are_together, self._is_in_part = before

    def are_together(self) -> bool:
        """Whether all workers are at the same place."""
        return self._are_together

    def gather(self, payload: bytes, name: str = "Lightning") -> list[bytes]:
        """Everybody's bytes, in rank order; called where all are together."""
        return [payload] if self._steps is None else self._steps.gather(payload, name)

    def gather_tensors(self, tensor: torch.Tensor, *_: object, **__: object) -> list[torch.Tensor]:
        """Everybody's tensors, in rank order, on this worker's device."""
        payloads = self.gather(packed(tensor.detach().cpu()))
        return [loaded(each).to(tensor.device) for each in payloads]

    def reduce(
        self,
        tensor: Any,  # noqa: ANN401 - as in Lightning
        group: object = None,  # noqa: ARG002 - there is one
        reduce_op: Any = "mean",  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """The mean (`sum`, `max`, `min`) of everybody's; alone, or in a pass, the value itself."""
        if not self._are_together or not isinstance(tensor, torch.Tensor):
            return tensor
        kind = str(getattr(reduce_op, "name", reduce_op or "mean")).lower()
        stacked = torch.stack(self.gather_tensors(tensor))
        if kind in ("mean", "avg"):
            return stacked.double().mean(0).to(tensor.dtype)
        return stacked.sum(0).to(tensor.dtype) if kind == "sum" else _extreme(stacked, kind)

    def all_gather(
        self,
        tensor: torch.Tensor,
        group: object = None,  # noqa: ARG002 - as above
        sync_grads: bool = False,  # noqa: ARG002 - there are none between steps
    ) -> torch.Tensor:
        """Everybody's, stacked along a new dimension 0; alone the tensor itself.

        Raises:
            UserError: It is called in a pass, where workers differ in their number.
        """
        if self._is_in_part:
            raise UserError(
                "all_gather in a training_step, validation_step, test_step or predict_step: the "
                "workers differ in how often these are called: log with self.log(..., "
                "sync_dist=True), or gather in on_train_batch_end or on_validation_epoch_end"
            )
        return torch.stack(self.gather_tensors(tensor)) if self._are_together else tensor

    def broadcast(self, obj: Anything, src: int = 0) -> Anything:
        """The object of a rank; where not all are together, this worker's own."""
        if not self._are_together:
            return obj
        payloads = self.gather(packed(obj))
        return loaded(payloads[src]) if src < len(payloads) else obj

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002
        """Whether all workers say so, or with `all=False` any; as in Lightning."""
        if not self._are_together:
            return decision
        said = [each == b"1" for each in self.gather(b"1" if decision else b"0")]
        return min(said) if all else max(said)

    def barrier(self, name: str | None = None) -> None:
        """Nobody waits: steps keep the workers together."""

    # What takes the place of Lightning's own.

    def setup_environment(self) -> None:
        """A fit, validation, test or prediction begins: take over its loop."""
        module = self.lightning_module
        if module is None:
            raise UserError("HeteroStrategy: give it to a Trainer: Trainer(strategy=...)")
        trainer = module.trainer
        check_trainer(trainer, module, self.root_device)
        connector = trainer._accelerator_connector
        connector.use_distributed_sampler = False
        vars(trainer._signal_connector)["register_signal_handlers"] = lambda: None
        super().setup_environment()
        self._take_over(trainer)

    def _take_over(self, trainer: Trainer) -> None:
        if self._fit is None or self._fit.trainer is not trainer:
            self._fit = Fit(self, trainer)
            record = RecordedMetrics(self, trainer._logger_connector.log_metrics)
            vars(trainer._logger_connector)["log_metrics"] = record.log_metrics
        vars(trainer.fit_loop)["run"] = self._fit.run
        for loop in (
            trainer.fit_loop.epoch_loop.val_loop,
            trainer.validate_loop,
            trainer.test_loop,
        ):
            vars(loop)["run"] = PartedLoop(self, loop).run
        vars(trainer.predict_loop)["run"] = PartedPrediction(self, trainer.predict_loop).run

    def setup(self, trainer: Trainer) -> None:
        """See `Strategy`; layers that normalise do so over the batch of all workers, if asked."""
        if trainer._accelerator_connector._layer_sync is not None and self.model is not None:
            convert_sync_batch_norm(self.model)
        super().setup(trainer)

    def setup_optimizers(self, trainer: Trainer) -> None:
        """See `Strategy`.

        Raises:
            UserError: There is more than one optimizer.
        """
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if "multiple optimizers" not in str(error):
                raise
            name = type(self.lightning_module).__name__
            raise UserError(f"{name}.configure_optimizers: {ONE_OPTIMIZER}") from error

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """See `Strategy`.

        Raises:
            UserError: It is the state of another optimizer.
        """
        with checked_state(self.optimizers[0], "ckpt_path: optimizer_states"):
            super().load_optimizer_state_dict(checkpoint)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """See `Strategy`.

        Raises:
            UserError: It lies in parts, or may do so.
        """
        if self.shard_optimizer:
            raise UserError(
                f"trainer.save_checkpoint: {IN_PARTS}: say weights_only=True, and leave out "
                "OnExceptionCheckpoint"
            )
        return super().optimizer_state(optimizer)

    def model_to_device(self) -> None:
        """Move the module to this worker's device."""
        if self.model is not None:
            self.model.to(self.root_device)

    def process_dataloader(self, dataloader: object) -> object:
        """The training loader is read by our steps, and not by Lightning.

        Raises:
            UserError: The workers of a job could not go over it in parts.
        """
        module = self.lightning_module
        stage = None if module is None else module.trainer.state.stage
        if module is None or stage is None:
            return dataloader
        check_divisible(dataloader, f"{stage.dataloader_prefix}_dataloaders", is_alone=is_alone())
        if not module.trainer.training:
            return dataloader
        return TrainingSet(dataloader, module.trainer.accumulate_grad_batches)

    @property
    def handles_gradient_accumulation(self) -> bool:
        """A step has all its batches."""
        return True

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: Any,  # noqa: ANN401 - a path of any kind
        storage_options: Any = None,  # noqa: ANN401
    ) -> None:
        """The leader writes; all know where."""
        if self._fit is not None:
            self._fit.saved(filepath, is_whole="optimizer_states" in checkpoint)
        super().save_checkpoint(checkpoint, filepath, storage_options)


class RecordedMetrics:
    """What Lightning logs stands in the job's record, too.

    Args:
        strategy: Whose steps have the record.
        log_metrics: Lightning's.
    """

    def __init__(self, strategy: HeteroStrategy, log_metrics: Callable[..., None]) -> None:
        self._strategy = strategy
        self._log_metrics = log_metrics

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """As in Lightning; numbers go into the record as well."""
        self._log_metrics(metrics, step)
        if self._strategy.steps is not None:
            self._strategy.steps.log(numbers(metrics))


def _tell_role(*, leads: bool) -> None:
    """Lightning's loggers and messages ask this of the function itself."""
    vars(rank_zero_only)["rank"] = 0 if leads else 1


def _extreme(stacked: torch.Tensor, kind: str) -> torch.Tensor:
    if kind not in REDUCTIONS:
        raise UserError(f"reduce_op={kind!r}: must be mean, sum, max or min")
    return stacked.amax(0) if kind == "max" else stacked.amin(0)
