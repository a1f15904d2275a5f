"""The training loader as Lightning sees it: how long it is; who reads it are our steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hetero_hvd.data.streams.stream_shards import check_places
from hetero_hvd.errors import UserError
from hetero_hvd.worker.data.seeding import own_course


class TrainingSet:
    """Stands for the script's loader in Lightning's loops, which read nothing from it.

    Args:
        loader: The script's.
        accumulation_steps: Batches in a step, > 0.

    Attributes:
        loader: As above.

    Raises:
        UserError: It is no DataLoader.
    """

    def __init__(self, loader: object, accumulation_steps: int) -> None:
        if not isinstance(loader, DataLoader):
            raise UserError(
                f"train_dataloaders: {type(loader).__name__}: must be one torch DataLoader, whose "
                "samples hetero_hvd divides among the workers"
            )
        self.loader: DataLoader[Any] = loader
        self._accumulation_steps = accumulation_steps

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the loader has
        if name.startswith("__") or name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Batches of an epoch; with `drop_last` those of a last, smaller step do not count.

        Raises:
            TypeError: Nobody knows, as for any stream.
        """
        if isinstance(self.loader.dataset, IterableDataset):
            raise TypeError("a stream has no length")
        length = len(self.loader)
        if getattr(self.loader.batch_sampler, "drop_last", self.loader.drop_last):
            length -= length % self._accumulation_steps
        return length

    def __iter__(self) -> Iterator[Any]:
        """Nothing: our steps hand out the parts."""
        return iter(())


def check_divisible(loader: Any, name: str, *, is_alone: bool) -> None:  # noqa: ANN401 - see below
    """See that the workers of a job can go over a loader in parts.

    Args:
        loader: Whatever Lightning iterates over.
        name: Of it, for the message.
        is_alone: Whether there will never be another worker.

    Raises:
        UserError: Each worker would go over the whole of it.
    """
    check_places(getattr(loader, "dataset", loader), name, is_alone=is_alone)
    if not is_alone and not isinstance(loader, DataLoader):
        raise UserError(
            f"{name}: {type(loader).__name__}: must be a torch DataLoader in a job, whose batches "
            "hetero_hvd divides among the workers"
        )


def empty_batch(loader: DataLoader[Any]) -> Any:  # noqa: ANN401 - whatever the loader gives
    """What a loader gives, without samples, for a worker that has not had a batch of it yet.

    Its first sample is read where the loader reads, and no random number is missing afterwards.
    None: it is a stream, of which each sample is read once, or has no sample of that kind.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    one: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_size=None if loader.batch_sampler is None else 1,
        num_workers=min(1, loader.num_workers),
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    with own_course():
        try:
            return without_samples(next(iter(one), None))
        except LookupError:  # its places are no numbers from 0
            return None


def without_samples(batch: Any) -> Any:  # noqa: ANN401 - whatever the loader gives
    """A batch like this one that has no samples, for the hooks of a worker without a part."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {name: without_samples(item) for name, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(without_samples, batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map(without_samples, batch))
    return batch
