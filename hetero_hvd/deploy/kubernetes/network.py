"""Who may talk with the pods of a job, and who asks for their metrics."""

from __future__ import annotations

from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.deploy.kubernetes.options import PAGE_PORT, KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import Manifest

METADATA_SERVICE = "169.254.169.254/32"
"""Of all three clouds."""

HTTPS_PORT = 443
DNS_PORT = 53
OBJECT_STORES = ("s3://", "gs://")


def network_policy(job: KubernetesJob) -> Manifest:
    """All among themselves, as Gloo and the rendezvous take any port; names; nothing else."""
    own = {"podSelector": {"matchLabels": job.labels()}}
    ingress: list[Manifest] = [{"from": [own]}]
    if job.monitoring_namespace is not None:
        ingress.append(
            {
                "from": [
                    {
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": job.monitoring_namespace}
                        }
                    }
                ],
                "ports": [_port("TCP", PAGE_PORT), _port("TCP", AGENT_PORT)],
            }
        )
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": job.metadata(job.name),
        "spec": {
            "podSelector": {"matchLabels": job.labels()},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": [{"to": [own]}, *_egress(job)],
        },
    }


def _egress(job: KubernetesJob) -> list[Manifest]:
    found: list[Manifest] = [{"ports": [_port("UDP", DNS_PORT), _port("TCP", DNS_PORT)]}]
    if job.allow_https or (job.checkpoint_url or "").startswith(OBJECT_STORES):
        found.append({"ports": [_port("TCP", HTTPS_PORT)]})
    if job.cloud is not None:
        service = [{"ipBlock": {"cidr": METADATA_SERVICE}}]
        found.append({"to": service, "ports": [_port("TCP", 80)]})
    return found


def _port(protocol: str, number: int) -> Manifest:
    return {"protocol": protocol, "port": number}


def pod_monitor(job: KubernetesJob) -> Manifest:
    """For Prometheus' operator; the token is that of the Secret."""
    token = {"type": "Bearer", "credentials": {"name": job.keys, "key": "token"}}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": job.metadata(job.name),
        "spec": {
            "selector": {"matchLabels": job.labels()},
            "podMetricsEndpoints": [
                {"port": port, "path": "/metrics", "interval": "5s", "authorization": token}
                for port in ("page", "agent-port")
            ],
        },
    }
