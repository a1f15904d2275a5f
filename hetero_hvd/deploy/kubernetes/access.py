"""What the driver may do in the cluster, if it is to tell of the run there: patch its own Job."""

from __future__ import annotations

from typing import Any

from hetero_hvd.deploy.kubernetes.options import KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import Manifest

RBAC = "rbac.authorization.k8s.io"


def account_of_driver(job: KubernetesJob) -> dict[str, Any]:
    """Fields of the driver's pod: its account and its token; nothing unless it is needed."""
    if not job.annotate:
        return {}
    return {"serviceAccountName": job.driver, "automountServiceAccountToken": True}


def access(job: KubernetesJob) -> list[Manifest]:
    """An account for the driver alone, which may patch this one Job, and nothing else."""
    rule = {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "resourceNames": [job.driver],
        "verbs": ["patch"],
    }
    about = job.metadata(job.driver)
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": about,
            "automountServiceAccountToken": False,
        },
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": about, "rules": [rule]},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": job.driver},
            "subjects": [{"kind": "ServiceAccount", "name": job.driver}],
        },
    ]
