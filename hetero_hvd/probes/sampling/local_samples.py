"""This node's samples as records, for a program that is no supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from hetero_hvd.messages import NodeEquipped, NodeSampled, OwnerSeen, event_from_json
from hetero_hvd.probes.sampling.follower import SampleFollower
from hetero_hvd.probes.sampling.shared_folder import SharedFolder

MAX_DEVICES = 64
MAX_USERS = 64
"""Of a device; what others have written may look like a sample."""

MAX_AGE_SECONDS = 10.0
SAMPLES_MISSED = 3
"""After as many a node's newest sample says nothing about now."""

MAX_WORDS = 200
Told = NodeSampled | NodeEquipped


def read_sample(content: bytes) -> Told | OwnerSeen | None:
    """What a sampler or a watch has written; None: it is neither, whatever it is."""
    try:
        told = event_from_json(content)
    except (msgspec.DecodeError, TypeError, RecursionError):
        return None
    if isinstance(told, OwnerSeen):
        return told if len(told.words) <= MAX_WORDS else None
    if not isinstance(told, Told) or len(told.devices) > MAX_DEVICES:
        return None
    if isinstance(told, NodeSampled) and any(len(g.used_by) > MAX_USERS for g in told.devices):
        return None
    return told


def follow_samples(
    node: str,
    take: Callable[[Told], None],
    *,
    seconds: float | Callable[[], float] = 1.0,
    say: Callable[[str], None] = lambda _: None,
    find_folder: Callable[[], SharedFolder] = SharedFolder.of_this_node,
) -> SampleFollower:
    """Hand on each sample of this node, and once what the node is made of, until it is closed.

    For one process of a node, such as the worker of local rank 0 where there is no driver. That of
    another job on the same node may have the sampler: both get the samples.

    Args:
        node: Name of the node in the records.
        take: Called with each, from a thread of its own; what it raises is told and does no harm.
        seconds: See `SampleFollower`.
        say: Told once of each reason for which there are none.
        find_folder: See `SampleFollower`.
    """

    def hand_on(content: bytes) -> None:
        told = read_sample(content)
        if isinstance(told, Told):
            take(msgspec.structs.replace(told, node=node))

    follower = SampleFollower(hand_on, seconds=seconds, say=say, find_folder=find_folder)
    follower.start()
    return follower


def max_age_seconds(sample_seconds: float) -> float:
    """Of the newest sample of a node that is sampled at this interval."""
    return max(MAX_AGE_SECONDS, SAMPLES_MISSED * sample_seconds)


class NewestSamples:
    """The newest sample of each node; one that is too old says nothing about now.

    Args:
        max_age_seconds: See there.
        clock: Monotonic.
    """

    def __init__(
        self,
        max_age_seconds: float = MAX_AGE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._samples: dict[str, tuple[float, NodeSampled]] = {}

    def take(self, told: object) -> None:
        """Keep it, if it is a sample; may be called from another thread."""
        if isinstance(told, NodeSampled):
            self._samples[told.node] = (self._clock(), told)

    def __call__(self) -> list[NodeSampled]:
        """Those that are not too old, by the node's name."""
        oldest_seconds = self._clock() - self._max_age_seconds
        found = sorted(dict(self._samples).items())
        return [sample for _, (at_seconds, sample) in found if at_seconds >= oldest_seconds]
