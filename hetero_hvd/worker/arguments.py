"""What a script gives to the trainer: refused at once, in one line, if it is something else."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils import data as torch_data

from hetero_hvd.data.streams.stream_shards import check_places
from hetero_hvd.errors import UserError
from hetero_hvd.worker.micro_batch.split import kind_of

WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def check_parts(
    model: Any,  # noqa: ANN401 - whatever the script gives
    optimizer: Any,  # noqa: ANN401
    loader: Any,  # noqa: ANN401
    after_step: Any,  # noqa: ANN401
    *,
    is_alone: bool,
) -> None:
    """Refuse what is no model, optimizer, loader or function.

    Raises:
        UserError: One of them is something else.
    """
    check_model(model, optimizer)
    check_loader(loader, "the training loader", is_alone=is_alone)
    if after_step is not None and not callable(after_step):
        raise UserError(
            f"after_step is {kind_of(after_step)}: must be a function without arguments"
        )


def check_model(model: Any, optimizer: Any, call: str = "") -> None:  # noqa: ANN401
    """Refuse what is no model, or no optimizer.

    Args:
        model: What should be one.
        optimizer: What should be one.
        call: In which both are given, for the message; empty: to the trainer.

    Raises:
        UserError: One of them is something else.
    """
    where = f"{call}: " if call else ""
    if not isinstance(model, torch.nn.Module):
        raise UserError(
            f"{where}the model is {kind_of(model)}: must be a torch.nn.Module, as in "
            "Trainer(model, optimizer, loader)"
        )
    if isinstance(model, WRAPPERS):
        raise UserError(f"{where}the model is {kind_of(model)}: give what it wraps, model.module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"{where}the optimizer is {kind_of(optimizer)}: must be a torch.optim.Optimizer, as in "
            "Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)"
        )


def check_loader(loader: Any, name: str, *, is_alone: bool) -> None:  # noqa: ANN401 - as above
    """Refuse a loader whose batches cannot be divided.

    Args:
        loader: What should be one.
        name: Of it, for the message.
        is_alone: Whether there will never be another worker.

    Raises:
        UserError: It is one, or no loader at all.
    """
    if not isinstance(loader, torch_data.DataLoader):
        raise UserError(
            f"the loader is {kind_of(loader)}: must be a torch.utils.data.DataLoader, whose "
            "batch_size is the global batch size"
        )
    check_places(loader.dataset, name, is_alone=is_alone)
    if loader.batch_sampler is None:
        raise UserError(
            "the DataLoader has no batch_size: give it the global batch size, or a sampler that "
            "gives batches as batch_sampler="
        )


def check_extra_state(extra_state: object) -> None:
    """Refuse what cannot be copied to a worker that joins, nor kept in a checkpoint.

    Raises:
        UserError: A part of it is such a thing.
    """
    if not isinstance(extra_state, Mapping):
        raise UserError(f"extra_state is {kind_of(extra_state)}: must be a dict of name to part")
    for name, part in extra_state.items():
        if not all(callable(getattr(part, law, None)) for law in ("state_dict", "load_state_dict")):
            raise UserError(
                f"extra_state[{name!r}] is {kind_of(part)}: must have state_dict() and "
                "load_state_dict(state), as docs/guide/trainer.md shows for a number"
            )


def check_count(number: object, name: str) -> None:
    """Refuse what is no number of things; one of NumPy's is as good as Python's.

    Raises:
        UserError: It is something else.
    """
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
        raise UserError(f"{name}({number!r}): must be a whole number >= 0")


def check_function(function: Any, call: str) -> None:  # noqa: ANN401 - whatever the script gives
    """Refuse what cannot be called.

    Args:
        function: What was given first.
        call: How it is done.

    Raises:
        UserError: It is no function.
    """
    if not callable(function) or isinstance(function, torch.Tensor):
        raise UserError(f"the first argument is {kind_of(function)}: must be a function: {call}")


def check_scheduler(scheduler: Any, interval: str, optimizer: object) -> None:  # noqa: ANN401
    """Refuse a scheduler that the trainer cannot advance.

    Raises:
        UserError: It is one, or the interval is none.
    """
    if interval not in ("epoch", "step"):
        raise UserError(f"scheduler_interval={interval!r}: must be 'epoch' or 'step'")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise UserError(
            "ReduceLROnPlateau needs a metric: give it as extra_state and call its step yourself"
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise UserError(
            f"the scheduler is {kind_of(scheduler)}: must be of torch.optim.lr_scheduler"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError(
            "the scheduler belongs to another optimizer: build it from the one that the trainer "
            "gets"
        )
