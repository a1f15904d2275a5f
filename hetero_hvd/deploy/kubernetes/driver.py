"""The driver: a Job that is tried again where trying helps, and how agents find it."""

from __future__ import annotations

from typing import Any

from hetero_hvd.deploy.kubernetes.access import account_of_driver
from hetero_hvd.deploy.kubernetes.options import (
    ADVERT_PORT,
    CONFIG,
    KEYS,
    PAGE_PORT,
    RUNS,
    KubernetesJob,
)
from hetero_hvd.deploy.kubernetes.pod import (
    NO_GPUS,
    THREADS_OF_LIMIT,
    Manifest,
    field,
    gone_soon,
    literal,
    pod,
    same_limits,
    variables,
)
from hetero_hvd.exit_codes import EXIT_REFUSED, EXIT_USER_ERROR

MAX_TRIES = 6
SHARED_MEMORY_BYTES = "1Gi"
GRACE_SECONDS = 60
"""For workers to leave after the step under way, and the record to be closed."""


def _start(job: KubernetesJob) -> list[str]:
    """The driver's command, which goes on where an earlier pod of the job has left a checkpoint.

    All of them have one folder, whose name is that of the run among the checkpoints of a store. The
    page is also at the loopback, where `kubectl port-forward` asks for it.
    """
    words = f"hetero-hvd run -f {CONFIG}/nodes.yaml --driver-address $(POD_IP)"
    words += f" --http-address 0.0.0.0 --output {RUNS}/{job.name} --resume auto"
    if job.annotate:
        words += f" --export kubernetes:job/{job.driver}"
    return [*words.split(), *map(literal, job.run_flags)]


def nodes_file(job: KubernetesJob) -> dict[str, Any]:
    """The job's nodes.yaml: agents announce themselves, so it lists nobody."""
    settings = {
        "discover": True,
        "listen": ADVERT_PORT,
        "cluster_key_file": f"{KEYS}/cluster.key",
        "http_port": PAGE_PORT,
        "http_token_file": f"{KEYS}/token",
    }
    if job.checkpoint_url is not None:
        settings["checkpoint_url"] = job.checkpoint_url
    return {"job": settings, "nodes": []}


def driver_job(job: KubernetesJob) -> Manifest:
    """The driver; a pod that is lost costs no try, and wrong input is not tried again."""
    template = pod(
        job,
        "driver",
        "driver",
        _container(job),
        shared_memory=SHARED_MEMORY_BYTES,
        restartPolicy="Never",
        tolerations=gone_soon(),
        terminationGracePeriodSeconds=GRACE_SECONDS,
        **account_of_driver(job),
    )
    template["metadata"]["annotations"] = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"
    }
    wrong_input = {"operator": "In", "values": [EXIT_USER_ERROR, EXIT_REFUSED]}
    lost = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job.metadata(job.driver, is_queued=True),
        "spec": {
            **({"suspend": True} if job.queue_labels else {}),  # until the queue admits it
            **_limit(job),
            "backoffLimit": MAX_TRIES if job.tries is None else job.tries,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": wrong_input},
                    {"action": "Ignore", "onPodConditions": lost},
                ]
            },
            "template": template,
        },
    }


def _limit(job: KubernetesJob) -> Manifest:
    limit = job.time_limit_seconds
    return {} if limit is None else {"activeDeadlineSeconds": limit}


def _container(job: KubernetesJob) -> Manifest:
    answers = {"httpGet": {"path": "/", "port": "page"}, "timeoutSeconds": 5}
    return {
        "command": _start(job),
        "args": [literal(word) for word in ("--", *job.command)],
        "env": [
            field("POD_IP", "status.podIP"),
            THREADS_OF_LIMIT,
            *variables(**NO_GPUS),
        ],
        "ports": [
            {"name": "page", "containerPort": PAGE_PORT, "protocol": "TCP"},
            {"name": "adverts", "containerPort": ADVERT_PORT, "protocol": "UDP"},
        ],
        "resources": same_limits(cpu="2", memory="4Gi"),
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 150},
        "livenessProbe": {**answers, "periodSeconds": 20, "failureThreshold": 6},
        "readinessProbe": {**answers, "periodSeconds": 10},
    }


def driver_service(job: KubernetesJob) -> Manifest:
    """The driver's name; also before it is ready, as agents repeat themselves."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": job.metadata(job.driver),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": job.labels("driver"),
            "ports": [
                {"name": "page", "port": PAGE_PORT, "targetPort": "page", "protocol": "TCP"},
                {
                    "name": "adverts",
                    "port": ADVERT_PORT,
                    "targetPort": "adverts",
                    "protocol": "UDP",
                },
            ],
        },
    }
