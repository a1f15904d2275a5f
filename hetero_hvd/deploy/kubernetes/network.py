"""Who may talk with the pods of a job, and who asks for their metrics."""

from __future__ import annotations

from urllib.parse import urlsplit

from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.deploy.kubernetes.options import PAGE_PORT, KubernetesJob
from hetero_hvd.deploy.kubernetes.pod import Manifest

METADATA_SERVICE = "169.254.169.254/32"
"""Of all three clouds."""

GKE_METADATA_SERVICE = "169.254.169.252/32"
GKE_METADATA_PORT = 988
"""Where GKE leads a pod that asks the metadata service; a NetworkPolicy judges by that."""

HTTP_PORT, HTTPS_PORT = 80, 443
API_SERVER_PORTS = (443, 6443)
"""Of its Service, and of what is behind that in most clusters; a policy judges by the latter."""

DNS_PORTS = (53, 5353)
"""As Kubernetes has it, and where name servers of OpenShift listen behind their Service."""

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
    names = [_port(protocol, port) for port in DNS_PORTS for protocol in ("UDP", "TCP")]
    found: list[Manifest] = [{"ports": names}]
    if outside := _outside_ports(job):
        found.append({"ports": [_port("TCP", port) for port in outside]})
    if job.annotate:
        found.append({"ports": [_port("TCP", port) for port in API_SERVER_PORTS]})
    is_google = job.cloud == "gcp" or (job.checkpoint_url or "").startswith("gs://")
    if job.cloud is not None or is_google:  # the latter has credentials from there, too
        found.append(_to(METADATA_SERVICE, 80))
    if is_google:
        found.append(_to(GKE_METADATA_SERVICE, GKE_METADATA_PORT))
    return found


def _outside_ports(job: KubernetesJob) -> list[int]:
    """Where data and checkpoints are, as far as the job names them."""
    found = set[int]()
    url = job.checkpoint_url or ""
    is_elsewhere = url.startswith("s3://") and job.s3_endpoint is not None
    if job.allow_https or (url.startswith(OBJECT_STORES) and not is_elsewhere):
        found.add(HTTPS_PORT)
    if job.s3_endpoint is not None:
        named = urlsplit(job.s3_endpoint)
        found.add(named.port or (HTTPS_PORT if named.scheme == "https" else HTTP_PORT))
    return sorted(found)


def _to(network: str, port: int) -> Manifest:
    return {"to": [{"ipBlock": {"cidr": network}}], "ports": [_port("TCP", port)]}


def _port(protocol: str, number: int) -> Manifest:
    return {"protocol": protocol, "port": number}


def pod_monitor(job: KubernetesJob) -> Manifest:
    """For Prometheus' operator; the token is that of the Secret."""
    token = {"type": "Bearer", "credentials": {"name": job.keys, "key": "token"}}
    named = {"sourceLabels": ["run_id"], "regex": "(.+)-[0-9a-f]{8}", "targetLabel": "run"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": job.metadata(job.name),
        "spec": {
            "selector": {"matchLabels": job.labels()},
            "podMetricsEndpoints": [
                {
                    "port": port,
                    "path": "/metrics",
                    "interval": "5s",
                    "authorization": token,
                    "metricRelabelings": [named],
                }
                for port in ("page", "agent-port")
            ],
        },
    }
