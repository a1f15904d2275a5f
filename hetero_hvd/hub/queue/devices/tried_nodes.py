"""Trials that a user has made, as far as they are of this cluster's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hetero_hvd.core.queue.measured.measured_trial import MeasuredPlacement, MeasuredTrial
from hetero_hvd.discovery.submission.queue_link import SubmittedTrial
from hetero_hvd.messages.launch import EMULATED

FEWEST_SETS = 2
"""One speed alone compares nothing."""


def tried(
    trial: SubmittedTrial, nodes: Mapping[str, tuple[int, str]], now_seconds: float
) -> MeasuredTrial | str:
    """What a trial says of the cluster's nodes; or in words why it says nothing.

    Args:
        trial: What its user says; nobody else's jobs are placed by it.
        nodes: See `QueueCluster.emulations`.
        now_seconds: On the queue's clock.
    """
    workers = Counter(worker.rpartition(":")[0] for worker in trial.devices)
    unlike = {
        name: why
        for name, number in sorted(workers.items())
        if (why := _unlike(trial, name, number, nodes.get(name)))
    }
    placements = {
        frozenset(each.nodes): MeasuredPlacement(
            nodes=tuple(sorted(set(each.nodes))),
            samples_per_second=each.samples_per_second,
            is_measured=each.is_measured,
        )
        for each in trial.placements
        if workers.keys() - unlike.keys() >= set(each.nodes)
    }
    if not any(each.is_measured for each in placements.values()) or len(placements) < FEWEST_SETS:
        why = "; ".join(f"{name} {words}" for name, words in unlike.items())
        return f"the trial of {trial.run} compares no sets of these nodes{why and f': {why}'}"
    return MeasuredTrial(
        run=trial.run,
        global_batch_size=trial.global_batch_size,
        at_seconds=now_seconds - trial.age_seconds,
        workers={name: number for name, number in workers.items() if name not in unlike},
        placements=tuple(placements.values()),
    )


def _unlike(trial: SubmittedTrial, name: str, number: int, here: tuple[int, str] | None) -> str:
    """Why a node is not the one that was measured; empty: it is, as far as can be told."""
    if here is None:
        return "is not in the cluster"
    num_devices, emulation = here
    if num_devices != number:
        return f"has {num_devices} devices and had {number} workers"
    told = [device for worker, device in trial.devices.items() if worker.startswith(f"{name}:")]
    if any(device.partition(EMULATED)[2] != emulation for device in told):
        return "is emulated otherwise than it was"
    return ""
