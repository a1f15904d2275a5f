"""What a user decides of a job on Kubernetes, and the names that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.pod.findings import PodPlaces

AgentsKind = Literal["deployment", "statefulset", "daemonset"]

ADVERT_PORT = 9389
"""UDP, where the driver listens for agents."""

PAGE_PORT = 8080
PACKED = "tree.tar.gz"
"""Name of the working tree in the ConfigMap."""

DEFAULT_NAME = "train"
"""Of a job."""

MAX_AGENTS = 1024
"""Of each kind."""

USER_ID = 10001
"""Of the image; no account of the node has it."""

KEYS = "/keys"
CONFIG = "/config"
RUNS = "/runs"
WORKSPACE = "/workspace"
TEMPORARY = "/tmp"  # noqa: S108 - of the pod alone
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - likewise
"""Folders in the containers."""


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """One job.

    Attributes:
        name: Of all that is made.
        image: With hetero_hvd.
        command: The script and its arguments, as after `hetero-hvd run --`.
        agents: What kind of set the agents are.
        num_gpu_agents: Agents with GPUs; in a DaemonSet, above 0: one on each node with GPUs.
        num_cpu_agents: Agents without.
        gpus_per_agent: Of each agent with GPUs; as many workers.
        agent_cpu: Cores of an agent.
        agent_memory: Bytes of an agent.
        shared_memory: Bytes of `/dev/shm`, part of the agent's memory.
        volume: Bytes of a volume that all pods share; None: each has its own, which goes with it.
        storage_class: Of that volume; None: the cluster's usual one.
        checkpoint_url: Where checkpoints go; None: into the volume.
        s3_endpoint: URL of the server that s3:// means; None: Amazon's.
        script: Name and text of a script that is not in the image; None: all is there.
        cloud: Whose notices of interruption the agents ask for; None: nobody's.
        monitoring_namespace: Where Prometheus is, of its operator; None: there is none.
        annotate: Whether the driver tells the state of the run in annotations of its Job.
        allow_https: Whether the pods may reach port 443 anywhere.
        run_flags: Of `hetero-hvd run`, for the driver.
        packed: The working tree, a tar.gz that nobody can change; empty: it is in the image.
        queue_labels: By which a queue admits driver and agents; none: they start at once.
        conditions: On the labels of the agents' nodes, as a `nodeAffinity` has them.
        tries: So many times the driver is started again after a failure; None: as usual.
        time_limit_seconds: The driver is ended after so long; None: never.
    """

    name: str
    image: str
    command: tuple[str, ...]
    agents: AgentsKind = "deployment"
    num_gpu_agents: int = 0
    num_cpu_agents: int = 0
    gpus_per_agent: int = 1
    agent_cpu: str = "4"
    agent_memory: str = "8Gi"
    shared_memory: str = "2Gi"
    volume: str | None = None
    storage_class: str | None = None
    checkpoint_url: str | None = None
    s3_endpoint: str | None = None
    script: tuple[str, str] | None = None
    cloud: str | None = None
    monitoring_namespace: str | None = None
    annotate: bool = False
    allow_https: bool = False
    run_flags: tuple[str, ...] = ()
    packed: bytes = b""
    queue_labels: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Mapping[str, Any], ...] = ()
    tries: int | None = None
    time_limit_seconds: int | None = None

    @property
    def driver(self) -> str:
        """Name of the driver's Job and Service."""
        return f"{self.name}-driver"

    @property
    def config(self) -> str:
        """Name of the ConfigMap."""
        return f"{self.name}-config"

    @property
    def keys(self) -> str:
        """Name of the Secret, with `cluster.key` and `token`."""
        return f"{self.name}-keys"

    @property
    def environment(self) -> str:
        """Name of a Secret that may be there, with credentials for data and checkpoints."""
        return f"{self.name}-env"

    @property
    def claim(self) -> str:
        """Name of the claim for the shared volume."""
        return f"{self.name}-runs"

    def labels(self, component: str | None = None) -> dict[str, str]:
        """Those of all that belongs to the job, or to one part of it."""
        found = {"app.kubernetes.io/name": "hetero-hvd", "app.kubernetes.io/instance": self.name}
        return found if component is None else found | {"app.kubernetes.io/component": component}

    def metadata(self, name: str, *, is_queued: bool = False) -> dict[str, Any]:
        """Of an object; without a namespace: `kubectl -n` says where.

        Args:
            name: Of the object.
            is_queued: Whether a queue admits it, if there is one.
        """
        return {
            "name": name,
            "labels": {**self.labels(), **(self.queue_labels if is_queued else {})},
        }


def places_of(name: str) -> PodPlaces:
    """Where things are in the pods of the job of a name."""
    job = KubernetesJob(name=name, image="", command=())
    return PodPlaces(
        keys=(f"{KEYS}/cluster.key", f"{KEYS}/token"),
        writable=(SHARED_MEMORY, TEMPORARY, RUNS),
        driver=job.driver,
        page_port=PAGE_PORT,
        advert_port=ADVERT_PORT,
        agent_port=AGENT_PORT,
    )
