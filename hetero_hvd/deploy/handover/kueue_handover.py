"""The job for Kubernetes with Kueue: a driver and an agent for each device, admitted one by one.

A pool is a LocalQueue, a priority a WorkloadPriorityClass. The working tree is in a ConfigMap that
nobody can change, the interpreter in an image that is named by its digest.
"""

from __future__ import annotations

import math

from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.handover.handed_job import (
    CPU,
    DEFAULT_PRIORITY,
    HandedJob,
    not_there,
)
from hetero_hvd.deploy.kubernetes.options import MAX_AGENTS, KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import Manifest
from hetero_hvd.errors import AllWrong, UserError

QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
MEBIBYTE = 2**20
MAX_TREE_BYTES = 900_000
"""A ConfigMap holds 1 MiB."""

KEYS = {
    "kind": "nvidia.com/gpu.product",
    "memory": "nvidia.com/gpu.memory",
    "node": "kubernetes.io/hostname",
}
"""Labels of nodes; the first two by NVIDIA's GPU feature discovery, memory in MiB."""


def kubernetes_job(
    job: HandedJob,
    *,
    image: str | None,
    tries: int | None,
    time_limit_seconds: float | None,
    checkpoint_url: str | None,
) -> KubernetesJob:
    """What is to be written.

    Args:
        job: What was submitted.
        image: With hetero_hvd, named by its digest.
        tries: So many times the driver is started again after a failure; None: as usual.
        time_limit_seconds: It is ended after so long since Kueue has admitted it; None: never.
        checkpoint_url: Where checkpoints go; None: they go with the driver's pod.

    Raises:
        UserError: Kubernetes has nothing for parts of it; names each.
    """
    wrong = AllWrong()
    image = wrong.of(lambda: _pinned_image(image), "")
    if len(job.packed) > MAX_TREE_BYTES:
        words = (
            f"--to kubernetes: the files of this folder have {len(job.packed)} bytes, packed; a "
            f"ConfigMap takes {MAX_TREE_BYTES}: put them into the image, and submit an empty folder"
        )
        wrong.take(UserError(words))
    labels = {}
    with wrong.part():
        labels[QUEUE_LABEL] = checks.name("--pool", job.pool, checks.MAX_LABEL)
    if job.priority != DEFAULT_PRIORITY:
        labels[PRIORITY_LABEL] = job.priority
    most = str(job.max_devices)
    number = wrong.of(lambda: checks.count("--max", most, 1, MAX_AGENTS), 1)
    command = wrong.of(lambda: checks.command(job.command), job.command)
    conditions: list[Manifest] = []
    for need in (need for need in job.needs if need.value != CPU):
        with wrong.part():
            conditions.append(_condition(job, need))
    wrong.check()
    return KubernetesJob(
        name=job.name,
        image=image,
        command=command,
        num_gpu_agents=number if job.uses_gpus else 0,
        num_cpu_agents=0 if job.uses_gpus else number,
        checkpoint_url=checkpoint_url,
        run_flags=job.run_flags,
        packed=job.packed,
        queue_labels=labels,
        conditions=tuple(conditions),
        tries=tries,
        time_limit_seconds=None if time_limit_seconds is None else math.ceil(time_limit_seconds),
    )


def _pinned_image(name: str | None) -> str:
    """An image that stays what it is.

    Raises:
        UserError: It is none, or not named by its digest.
    """
    if name is None or "@sha256:" not in checks.image("--image", name):
        raise UserError(
            f"--image: found {name!r}, must be NAME@sha256:DIGEST, so that what runs is what was "
            "submitted, whatever is pushed later"
        )
    return name


def _condition(job: HandedJob, need: DeviceNeed) -> Manifest:
    """A condition on the labels of an agent's node."""
    if not job.uses_gpus and need.what != "node":
        raise not_there("kubernetes", need, "what has no GPU has no label for it")
    operator = "In" if need.comparison == "==" else "NotIn"
    value = str(need.value)
    if isinstance(need.value, float):
        operator, value = _of_memory(need, need.value / MEBIBYTE)
    return {"key": KEYS[need.what], "operator": operator, "values": [value]}


def _of_memory(need: DeviceNeed, mebibytes: float) -> tuple[str, str]:
    """Kubernetes compares whole numbers, by more or less only."""
    operators = {
        ">=": ("Gt", math.ceil(mebibytes) - 1),
        ">": ("Gt", math.floor(mebibytes)),
        "<=": ("Lt", math.floor(mebibytes) + 1),
        "<": ("Lt", math.ceil(mebibytes)),
        "==": ("In", round(mebibytes)),
        "!=": ("NotIn", round(mebibytes)),
    }
    operator, number = operators[need.comparison]
    return operator, str(number)
