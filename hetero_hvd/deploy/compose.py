"""The demo on one machine for Docker Compose: driver, three agents of unequal speed, monitoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.config.yaml_document import yaml_text

NETWORK = "172.30.77"
"""Fixed addresses, as Prometheus and the workers are told addresses, not names."""

DRIVER = f"{NETWORK}.2"
WATCHER = f"{NETWORK}.20"
ADVERT_PORT = 9389
PAGE_PORT = 8080
AGENTS = {
    "alpha": (f"{NETWORK}.11", 1.0),
    "beta": (f"{NETWORK}.12", 0.5),
    "gamma": (f"{NETWORK}.13", 0.25),
}
"""Name to address and cores."""

PROMETHEUS = "prom/prometheus:v3.1.0"
GRAFANA = "grafana/grafana:11.4.0"
START = f"""\
exec hetero-hvd run -f /config/nodes.yaml --min-np {len(AGENTS)} --driver-address {DRIVER} \
--http-address {DRIVER} --output "/runs/$(date -u +%Y-%m-%dT%H-%M-%SZ)" "$@"
"""

TEMPORARY = "/tmp:exec,mode=1777"  # noqa: S108 - of the container alone
"""Docker mounts it `noexec` unless told otherwise; what torch.compile builds there is loaded as a
library."""

ASK = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=3).close()"

Service = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ComposeDemo:
    """What a user decides.

    Attributes:
        image: With hetero_hvd.
        command: The script and its arguments.
        user: Number of the user and of the group to whom the files belong.
        script: Name of a script beside compose.yaml that is not in the image; None: all is there.
    """

    image: str
    command: tuple[str, ...]
    user: tuple[int, int]
    script: str | None = None


def compose_file(demo: ComposeDemo) -> str:
    """The text of compose.yaml."""
    agents = {name: _agent(demo, name, *found) for name, found in AGENTS.items()}
    services = {"driver": _driver(demo), **agents, **_monitoring(demo)}
    pool = {"config": [{"subnet": f"{NETWORK}.0/24"}]}
    networks = {"job": {"ipam": pool}}
    return yaml_text({"name": "hetero-hvd", "services": _literal(services), "networks": networks})


def nodes_file() -> str:
    """The text of the driver's nodes.yaml: agents announce themselves, so it lists nobody."""
    settings = {
        "discover": True,
        "listen": ADVERT_PORT,
        "cluster_key_file": "/keys/cluster.key",
        "http_port": PAGE_PORT,
        "http_token_file": "/keys/token",
        "baseline_steps": 40,
    }
    return yaml_text({"job": settings, "nodes": []})


def _literal(value: Any) -> Any:  # noqa: ANN401 - plain data
    """All texts with `$` doubled: Compose puts variables in its place."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _ours(demo: ComposeDemo, address: str) -> Service:
    """What driver and agents have in common."""
    script = [] if demo.script is None else [f"./{demo.script}:/workspace/{demo.script}:ro"]
    return {
        "image": demo.image,
        "user": "{}:{}".format(*demo.user),
        "init": True,  # buries orphans
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "shm_size": "1gb",
        "tmpfs": [TEMPORARY],
        "environment": {"HOME": "/tmp"},  # noqa: S108 - of the container alone
        "networks": {"job": {"ipv4_address": address}},
        "volumes": ["./keys:/keys:ro", "./runs:/runs", *script],
    }


def _driver(demo: ComposeDemo) -> Service:
    common = _ours(demo, DRIVER)
    url = f"http://{DRIVER}:{PAGE_PORT}/"
    return {
        **common,
        "command": ["sh", "-c", START, "driver", "--", *demo.command],
        "volumes": [*common["volumes"], "./nodes.yaml:/config/nodes.yaml:ro"],
        "ports": [f"127.0.0.1:{PAGE_PORT}:{PAGE_PORT}"],
        "stop_grace_period": "60s",
        "healthcheck": _asks(url),
    }


def _agent(demo: ComposeDemo, name: str, address: str, cores: float) -> Service:
    common = _ours(demo, address)
    words = f"hetero-hvd agent --key-file /keys/cluster.key --token-file /keys/token --name {name}"
    words += f" --address {address} --port {AGENT_PORT} --announce-to {DRIVER}:{ADVERT_PORT}"
    return {
        **common,
        "command": words.split(),
        "environment": {**common["environment"], "OMP_NUM_THREADS": "1"},
        "cpus": cores,
        "stop_grace_period": "45s",
        "restart": "on-failure",
        "healthcheck": _asks(f"http://{address}:{AGENT_PORT}/alive"),
    }


def _asks(url: str) -> Service:
    times = {"interval": "20s", "timeout": "10s", "start_period": "60s", "retries": 6}
    return {"test": ["CMD", "python", "-c", ASK, url], **times}


def _monitoring(demo: ComposeDemo) -> dict[str, Service]:
    """Prometheus and Grafana, which shares its network: it asks for it at localhost."""
    provisioning = "./monitoring/grafana/provisioning:/etc/grafana/provisioning:ro"
    dashboards = "./monitoring/grafana/dashboards:/etc/grafana/dashboards:ro"
    return {
        "prometheus": {
            "image": PROMETHEUS,
            "user": "{}:{}".format(*demo.user),
            "command": [
                "--config.file=/etc/prometheus/prometheus.yml",
                "--storage.tsdb.path=/tmp/prometheus",
            ],
            "tmpfs": ["/tmp"],  # noqa: S108 - of the container alone
            "networks": {"job": {"ipv4_address": WATCHER}},
            "volumes": ["./monitoring:/etc/prometheus:ro", "./keys:/keys:ro"],
            "ports": ["127.0.0.1:9090:9090", "127.0.0.1:3000:3000"],
        },
        "grafana": {
            "image": GRAFANA,
            "network_mode": "service:prometheus",
            "environment": {"GF_AUTH_ANONYMOUS_ENABLED": "true"},
            "volumes": [provisioning, dashboards],
        },
    }
