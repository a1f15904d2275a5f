"""Our trainer as the trainers of other packages need it: their loop and their state around it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.evaluation import PartedEvaluation
from hetero_hvd.worker.logged_values import NAME
from hetero_hvd.worker.micro_batch.split import is_scalar
from hetero_hvd.worker.options import StepOptions
from hetero_hvd.worker.recovery.replica import for_own_device
from hetero_hvd.worker.session.launch_settings import read_launch_settings
from hetero_hvd.worker.trainer import Trainer

logger = logging.getLogger(__name__)

IN_STEP = ("synchronous", "reproducible")
"""Training modes whose steps end one after the other, on all workers alike."""


ShardOptimizer = bool | Literal["auto"]
"""Whether the optimizer's state lies in parts on the workers, see `worker.options.StepOptions`."""

IN_PARTS = (
    "with shard_optimizer the optimizer's state is on no worker as a whole: the job keeps it, with "
    "checkpoint_seconds, and goes on from it with --resume"
)
"""Why another package's checkpoints cannot have that state, and what has it."""


class Steps(Trainer):
    """`hetero_hvd.Trainer`, with what only another trainer asks for."""

    @property
    def epoch(self) -> int:
        """The epoch under way, 0-based; the same on every worker."""
        return self._state.position.epoch

    @property
    def step_in_epoch(self) -> int:
        """Steps of the epoch under way that are applied; the same on every worker."""
        return self._state.position.step_in_epoch

    @property
    def last_batches(self) -> list[Any]:
        """This worker's part of the step that was begun last, as it was collated.

        One batch, or each grain in the reproducible mode; none if this worker had no part.
        """
        part = self._last
        if part is None or part.batch is None:
            return []
        if part.grains is None:
            return [part.batch]
        return [grain for (grain,) in part.grains.pieces((part.batch,))]

    @property
    def last_counted(self) -> float:
        """What the loss functions of all workers have counted in the step that was applied last."""
        return self._pipeline.counted

    @property
    def num_begun(self) -> int:
        """How often this worker has begun a part of a step; one that is taken again counts anew."""
        return self._step.passes.num_begun

    @property
    def has_idle_workers(self) -> bool:
        """Whether some workers have no part of the step that was begun last."""
        return self._last is not None and self._last.num_idle > 0

    @property
    def num_samples(self) -> int:
        """Samples in the micro-batch under way."""
        return self._step.passes.num_samples

    @property
    def has_all_steps(self) -> bool:
        """Whether no step of the epoch under way is left; of a stream nobody knows."""
        return self._has_all_steps

    def begin_at(self, epoch: int, step_in_epoch: int, applied_steps: int) -> None:
        """The other trainer has loaded the state after so many steps: go on from there.

        Called before `epochs`. A checkpoint of the job (`--resume`), and the state of another
        worker that is further, come first.

        Args:
            epoch: Epoch under way, >= 0.
            step_in_epoch: Steps of it that are applied, >= 0.
            applied_steps: Steps applied since the start of training, >= 0.
        """
        self._state.begin_at(epoch, step_in_epoch, applied_steps)

    def find(self, evaluation: PartedEvaluation) -> dict[str, float]:
        """What all workers find out of a set together, each in its part of it.

        Args:
            evaluation: What each does with its part, and how a result is made of all parts. If a
                worker is lost meanwhile the parts are computed anew.

        Returns:
            The result, the same on every worker. On a worker that has come since it was found,
            `evaluation` is not asked.
        """
        return self._find(evaluation)

    def gather(self, payload: bytes, name: str) -> list[bytes]:
        """Every worker's bytes, in rank order; called by all at the same place.

        Args:
            payload: This worker's.
            name: Of what is gathered, the same on all workers.

        Returns:
            All of them. If a worker is lost meanwhile: those of the workers that remain, the same
            on each, and of those that have not applied the step nothing; after the training, when
            nobody can be let in, this worker's alone.
        """
        collective = self._state.context.collective
        if self._after_step.is_running:
            return self._state.application.gather(collective, payload, name)
        if self._epoch_exhausted and not self._is_through:
            return self._evaluations.gather(payload)
        try:
            return gather_bytes(collective, payload, name)
        except Interrupted as fault:
            logger.warning("%s: this worker goes on with its own alone: %s", name, fault)
            return [payload]


def check_job(package: str) -> None:
    """Refuse a job whose steps another package cannot count.

    Args:
        package: Whose trainer it is.

    Raises:
        UserError: It is one.
    """
    job = read_launch_settings().launch.job
    if job.mode not in IN_STEP or job.staleness_bound:
        what = f"staleness_bound: {job.staleness_bound}" if job.mode in IN_STEP else job.mode
        raise UserError(
            f"{what}: {package} plans its schedule, logs and checkpoints by steps that end one "
            "after the other: leave it out of nodes.yaml, or write the loop with hetero_hvd.Trainer"
        )


def check_shard_optimizer(value: object) -> None:
    """Refuse what is no value of it, when it is given; raises UserError."""
    StepOptions(shard_optimizer=value)  # type: ignore[arg-type]  # that is what it looks at


@contextmanager
def checked_state(optimizer: torch.optim.Optimizer, where: str) -> Iterator[None]:
    """Around the loading of an optimizer's state from another package's checkpoint.

    torch takes that of another kind of optimizer, and fails in the first step; and with the state
    it takes the kernels of the device on which that was written, which this worker may not have.

    Args:
        optimizer: Gets the state.
        where: The state is, for the message.

    Raises:
        UserError: It is not one of this optimizer.
    """
    kind = type(optimizer).__name__
    what_to_do = "train on with the model and the optimizer that wrote it"
    hook = optimizer.register_load_state_dict_pre_hook(for_own_device)
    try:
        yield
    except ValueError as error:
        raise UserError(f"{where}: not the state of this {kind}: {error}: {what_to_do}") from error
    finally:
        hook.remove()
    lacking = {
        name for group in optimizer.param_groups for name in optimizer.defaults.keys() - group
    }
    if lacking:
        raise UserError(
            f"{where}: not the state of this {kind}: it lacks {', '.join(sorted(lacking))}: "
            f"{what_to_do}"
        )


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """What of this can be recorded: one real number each, under a name that it can have."""
    return {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float | torch.Tensor)
        and is_scalar(value)
        and NAME.fullmatch(name)
    }
