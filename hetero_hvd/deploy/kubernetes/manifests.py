"""All that a job is made of, by file."""

from __future__ import annotations

import base64

from hetero_hvd.config.yaml_document import yaml_text
from hetero_hvd.deploy.folder import with_mark
from hetero_hvd.deploy.kubernetes.access import access
from hetero_hvd.deploy.kubernetes.agents import agent_sets
from hetero_hvd.deploy.kubernetes.driver import driver_job, driver_service, nodes_file
from hetero_hvd.deploy.kubernetes.network import network_policy, pod_monitor
from hetero_hvd.deploy.kubernetes.options import PACKED, KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import Manifest


def manifests(job: KubernetesJob) -> dict[str, list[Manifest]]:
    """The manifests of a job, by the name of their file; without any for what it does not have."""
    return {
        "config.yaml": [_config(job)],
        "network.yaml": [driver_service(job), network_policy(job)],
        "storage.yaml": [] if job.volume is None else [_claim(job, job.volume)],
        "access.yaml": access(job) if job.annotate else [],
        "driver.yaml": [driver_job(job)],
        "agents.yaml": agent_sets(job),
        "monitoring.yaml": [] if job.monitoring_namespace is None else [pod_monitor(job)],
    }


def files(job: KubernetesJob) -> dict[str, str | None]:
    """Their text; None: there is no such file."""
    return {
        name: with_mark(yaml_text(*found)) if found else None
        for name, found in manifests(job).items()
    }


def _config(job: KubernetesJob) -> Manifest:
    data = {"nodes.yaml": yaml_text(nodes_file(job))}
    if job.script is not None:
        name, text = job.script
        data[name] = text
    more: Manifest = {}
    if job.packed:
        packed = base64.b64encode(job.packed).decode()
        more = {"binaryData": {PACKED: packed}, "immutable": True}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": job.metadata(job.config),
        "data": data,
        **more,
    }


def _claim(job: KubernetesJob, size: str) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": size}},
    }
    if job.storage_class is not None:
        spec["storageClassName"] = job.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": job.metadata(job.claim),
        "spec": spec,
    }
