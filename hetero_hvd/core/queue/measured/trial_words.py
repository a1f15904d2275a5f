"""What a trial says of a job's devices, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.measured.measured_trial import MeasuredTrial


def speed_here(
    request: JobRequest, names: Iterable[str], devices: Mapping[str, QueueDevice]
) -> str:
    """How fast a job is on these devices; empty: no trial says it.

    Args:
        request: Of the job.
        names: Of its devices.
        devices: Name to each of the cluster.
    """
    trial = request.trial
    nodes = None if trial is None else _nodes(trial, names, devices)
    found = None if trial is None or nodes is None else trial.speeds.get(nodes)
    if trial is None or found is None:
        return ""
    how = "measured" if found.is_measured else "predicted"
    return f"{found.samples_per_second:.4g} samples/s {how} by the trial of {trial.run}"


def what_is_left_out(
    request: JobRequest,
    names: Collection[str],
    devices: Mapping[str, QueueDevice],
    held: Collection[str],
) -> str:
    """Nodes whose devices are idle, as the trial says that they would slow it down; or nothing.

    Args:
        request: Of the job.
        names: Of its devices.
        devices: Name to each of the cluster.
        held: Names of those that somebody has.
    """
    trial = request.trial
    nodes = None if trial is None else _nodes(trial, names, devices)
    if trial is None or nodes is None or nodes not in trial.speeds:
        return ""
    speeds = trial.speeds
    room = request.most_devices - len(names)
    idle = Counter(
        each.node
        for name, each in devices.items()
        if name not in held and each.condition == "ready"
    )
    slower = [
        f"{node} ({found.samples_per_second:.4g} with it)"
        for node, number in sorted(trial.workers.items())
        if node not in nodes and idle[node] == number <= room
        if (found := speeds.get(nodes | {node})) is not None
        if found.samples_per_second <= speeds[nodes].samples_per_second
    ]
    return f"left out, as it is no faster with them: {', '.join(slower)}" if slower else ""


def fastest(request: JobRequest) -> str:
    """The set that is best by its trial; empty: there is none."""
    trial = request.trial
    if trial is None or not trial.placements:
        return ""
    best = max(trial.placements, key=lambda each: each.samples_per_second)
    nodes, speed = ", ".join(best.nodes), f"{best.samples_per_second:.4g} samples/s"
    return f"fastest by the trial of {trial.run}: {nodes}, {speed}"


def _nodes(
    trial: MeasuredTrial, names: Iterable[str], devices: Mapping[str, QueueDevice]
) -> frozenset[str] | None:
    """The nodes of these devices; None: of one of them it has others than the trial had."""
    counted = Counter(devices[name].node for name in names)
    if any(trial.workers.get(node) != number for node, number in counted.items()):
        return None
    return frozenset(counted)
