"""The agents: a pool with GPUs and one without, each as the kind of set that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.deploy.kubernetes.options import ADVERT_PORT, KEYS, KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import (
    NO_GPUS,
    THREADS_OF_LIMIT,
    Manifest,
    field,
    gone_soon,
    num_cores,
    pod,
    same_limits,
    variables,
)

GPU, CPU = "gpu", "cpu"
"""The pools."""

GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABEL = "nvidia.com/gpu.present"
"""Of nodes, by NVIDIA's GPU feature discovery."""

GRACE_SECONDS = 45
"""For an agent to say good-bye and its workers to leave after the step under way."""


def agent_sets(job: KubernetesJob) -> list[Manifest]:
    """A set for each pool that has somebody in it."""
    pools = {GPU: job.num_gpu_agents, CPU: job.num_cpu_agents}
    return [_set_of(job, pool, number) for pool, number in pools.items() if number]


def _set_of(job: KubernetesJob, pool: str, number: int) -> Manifest:
    name = f"{job.name}-{pool}"
    labels = job.labels(f"{pool}-agents")
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "deployment": (
            "Deployment",
            {
                "replicas": number,
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            },
        ),
        "statefulset": (
            "StatefulSet",
            {
                "replicas": number,
                "serviceName": job.driver,
                "podManagementPolicy": "Parallel",
            },
        ),
        "daemonset": ("DaemonSet", {}),
    }
    kind, own = kinds[job.agents]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": job.metadata(name, is_queued=True),
        "spec": {**own, "selector": {"matchLabels": labels}, "template": _template(job, pool)},
    }


def _template(job: KubernetesJob, pool: str) -> Manifest:
    more: Manifest = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": _tolerations(pool, is_everywhere=job.agents == "daemonset"),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": job.labels(f"{pool}-agents")},
            }
        ],
    }
    conditions: list[Mapping[str, Any]] = [*job.conditions]
    if job.agents == "daemonset":
        conditions += [{"key": GPU_LABEL, "operator": "Exists" if pool == GPU else "DoesNotExist"}]
    if conditions:
        required = {"nodeSelectorTerms": [{"matchExpressions": conditions}]}
        more["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
    return pod(
        job,
        f"{pool}-agents",
        "node-agent",
        _container(job, pool),
        shared_memory=job.shared_memory,
        **more,
    )


def _tolerations(pool: str, *, is_everywhere: bool) -> list[Manifest]:
    found: list[Manifest] = []
    if not is_everywhere:  # a DaemonSet's pods stay on their nodes whatever happens
        found = gone_soon()
    if pool == GPU:
        found.append({"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"})
    return found


def _container(job: KubernetesJob, pool: str) -> Manifest:
    amounts = {"cpu": job.agent_cpu, "memory": job.agent_memory}
    if pool == GPU:
        amounts[GPU_RESOURCE] = str(job.gpus_per_agent)
    env: list[Manifest] = [
        field("POD_IP", "status.podIP"),
        field("POD_NAME", "metadata.name"),
        _threads(job, job.gpus_per_agent if pool == GPU else 1),
        *variables(**NO_GPUS if pool == CPU else {}),
    ]
    answers = {"httpGet": {"path": "/alive", "port": "agent-port"}, "timeoutSeconds": 5}
    return {
        "command": _command(job),
        "env": env,
        "ports": [{"name": "agent-port", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "resources": same_limits(**amounts),
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 150},
        "livenessProbe": {**answers, "periodSeconds": 20, "failureThreshold": 6},
        "readinessProbe": {**answers, "periodSeconds": 10},
    }


def _threads(job: KubernetesJob, num_workers: int) -> Manifest:
    """OMP_NUM_THREADS of each worker, as torch would count the node's cores.

    One alone has the pod's cores, whatever becomes of the manifest's limit. Of several each has its
    part, which Kubernetes cannot divide: it takes no other divisors of cores than 1 and 1m, and
    makes of a part of a core a whole one.
    """
    cores = num_cores(job.agent_cpu)
    if num_workers == 1 and cores.is_integer():
        return THREADS_OF_LIMIT
    threads = max(1, int(cores) // num_workers)
    return {"name": "OMP_NUM_THREADS", "value": str(threads)}


def _command(job: KubernetesJob) -> list[str]:
    words = f"hetero-hvd agent --key-file {KEYS}/cluster.key --token-file {KEYS}/token"
    words += f" --name $(POD_NAME) --address $(POD_IP) --port {AGENT_PORT}"
    words += f" --announce-to {job.driver}:{ADVERT_PORT}"
    cloud = [] if job.cloud is None else ["--cloud", job.cloud]
    return [*words.split(), *cloud]
