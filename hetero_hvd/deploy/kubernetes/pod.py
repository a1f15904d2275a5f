"""What the pods of a job have in common: who they run as, keys, volumes."""

from __future__ import annotations

from typing import Any

from hetero_hvd.deploy.kubernetes.options import (
    CONFIG,
    KEYS,
    PACKED,
    RUNS,
    SHARED_MEMORY,
    TEMPORARY,
    USER_ID,
    WORKSPACE,
    KubernetesJob,
)

Manifest = dict[str, Any]

SECRET = "/secret"  # noqa: S105 - a folder
GONE_SECONDS = 30
"""How long a pod stays on a node that does not answer; Kubernetes alone would wait for 300 s."""

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
COPY_KEYS = f"install -m 0400 {SECRET}/cluster.key {SECRET}/token {KEYS}/"
"""A Secret belongs to root; what makes it readable for us makes it readable for our group, too, and
such a key is refused. So it is copied into memory."""

ENDPOINT = "AWS_ENDPOINT_URL"
NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Of a pod that asks for none: an image may ask for all of its node."""

THREADS_OF_LIMIT: Manifest = {
    "name": "OMP_NUM_THREADS",
    "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}},
}
"""As many as the container's cores, whose number is whole."""


def literal(word: str) -> str:
    """A word of a command that means itself: Kubernetes puts variables in place of `$(NAME)`."""
    return word.replace("$", "$$")


def field(name: str, path: str) -> Manifest:
    """An environment variable with what Kubernetes knows of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def same_limits(**amounts: str) -> Manifest:
    """Resources that a container gets and keeps to."""
    return {"requests": amounts, "limits": amounts}


def variables(**more: str) -> list[Manifest]:
    """Environment variables of every container of ours, and further ones."""
    common = {"HOME": TEMPORARY, "PYTHONUNBUFFERED": "1"}
    return [{"name": name, "value": value} for name, value in (common | more).items()]


def num_cores(amount: str) -> float:
    """Cores of an amount of the resource `cpu`, such as 4, 2.5 or 500m."""
    return int(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)


def gone_soon() -> list[Manifest]:
    """What lets a pod go from a node that does not answer."""
    return [
        {
            "key": f"node.kubernetes.io/{why}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": GONE_SECONDS,
        }
        for why in ("not-ready", "unreachable")
    ]


def pod(
    job: KubernetesJob,
    component: str,
    name: str,
    container: Manifest,
    *,
    shared_memory: str,
    **more: object,
) -> Manifest:
    """The template of a pod.

    Args:
        job: The job.
        component: Which part of it.
        name: Of the container.
        container: Its one container; gets the volumes.
        shared_memory: Bytes of its `/dev/shm`, fewer than those of its memory.
        more: Further fields of the pod.
    """
    return {
        "metadata": {"labels": job.labels(component)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # its first process is one that buries orphans
            "securityContext": POD_SECURITY,
            **more,
            "initContainers": [_keys_container(job), *_tree_container(job)],
            "containers": [
                {
                    "name": name,
                    "image": job.image,
                    **_with_endpoint(job, container),
                    "envFrom": [{"secretRef": {"name": job.environment, "optional": True}}],
                    "workingDir": WORKSPACE,
                    "volumeMounts": _mounts(job),
                    "securityContext": CONTAINER_SECURITY,
                }
            ],
            "volumes": _volumes(job, shared_memory),
        },
    }


def _with_endpoint(job: KubernetesJob, container: Manifest) -> Manifest:
    if job.s3_endpoint is None:
        return container
    return container | {"env": [*container["env"], {"name": ENDPOINT, "value": job.s3_endpoint}]}


def _keys_container(job: KubernetesJob) -> Manifest:
    return {
        "name": "keys",
        "image": job.image,
        "command": COPY_KEYS.split(),
        "resources": same_limits(cpu="100m", memory="64Mi"),
        "volumeMounts": [
            {"name": "secret", "mountPath": SECRET, "readOnly": True},
            {"name": "keys", "mountPath": KEYS},
        ],
        "securityContext": CONTAINER_SECURITY,
    }


def _tree_container(job: KubernetesJob) -> list[Manifest]:
    """Unpacks the working tree, if it is not in the image."""
    if not job.packed:
        return []
    container = _keys_container(job) | {
        "name": "tree",
        "command": ["tar", "-xzf", f"{CONFIG}/{PACKED}", "--no-same-owner", "-C", WORKSPACE],
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG, "readOnly": True},
            {"name": "tree", "mountPath": WORKSPACE},
        ],
    }
    return [container]


def _mounts(job: KubernetesJob) -> list[Manifest]:
    found: list[Manifest] = [
        {"name": "keys", "mountPath": KEYS, "readOnly": True},
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "runs", "mountPath": RUNS},
        {"name": "tmp", "mountPath": TEMPORARY},
        {"name": "shm", "mountPath": SHARED_MEMORY},
    ]
    if job.packed:
        found.append({"name": "tree", "mountPath": WORKSPACE})
    if job.script is not None:
        name, _ = job.script
        path = f"{WORKSPACE}/{name}"
        found.append({"name": "config", "mountPath": path, "subPath": name, "readOnly": True})
    return found


def _volumes(job: KubernetesJob, shared_memory: str) -> list[Manifest]:
    runs: Manifest = {"emptyDir": {}}
    if job.volume is not None:
        runs = {"persistentVolumeClaim": {"claimName": job.claim}}
    memory = {"medium": "Memory", "sizeLimit": shared_memory}
    return [
        {"name": "secret", "secret": {"secretName": job.keys, "defaultMode": 0o440}},
        {"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "config", "configMap": {"name": job.config}},
        {"name": "runs", **runs},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": memory},
        *([{"name": "tree", "emptyDir": {}}] if job.packed else []),
    ]
