"""The files from which Prometheus, Alertmanager and Grafana can be started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_hvd.monitoring.alertmanager import alertmanager
from hetero_hvd.monitoring.dashboards import dashboards
from hetero_hvd.monitoring.gpu_rules import gpu_rules
from hetero_hvd.run.web.scraping.targets import TARGETS

ALERTMANAGER = "localhost:9093"
"""Its usual place, beside Prometheus."""

SCRAPE_INTERVAL = "5s"
SOON = {"refresh_interval": "5s"}
"""So long a run that has come may go unseen."""

RULES = Path(__file__).with_name("rules.yml")


@dataclass(frozen=True, kw_only=True)
class WatchedPlaces:
    """Where the runs are; one of the three at least.

    Attributes:
        driver: Address of a driver, `http[s]://HOST:PORT`; None: none is named.
        runs: Folder above those of runs on Prometheus' machine, absolute: those that come and go
            there; None: none.
        hub: Address of a hub: the runs that are reported to it, and its queue; None: none.
    """

    driver: str | None = None
    runs: str | None = None
    hub: str | None = None


def stack_files(
    watched: WatchedPlaces,
    *,
    token_file: str | None = None,
    ca_file: str | None = None,
    alerts_to: str | None = None,
) -> dict[str, str]:
    """prometheus.yml, the rules, alertmanager.yml, and Grafana's files.

    JSON is YAML too, so whatever stands in an address or a path is quoted rightly.

    Args:
        watched: Where the runs are.
        token_file: File with the token for looking of all of them; Prometheus reads it, we do not.
        ca_file: Certificate authority of all of them, PEM.
        alerts_to: Where Alertmanager sends alerts; None: nowhere.

    Returns:
        Path in a folder to text.
    """
    provisioning = "grafana/provisioning"
    path = "/etc/grafana/dashboards"
    contents = {
        "prometheus.yml": _json(_prometheus(watched, token_file, ca_file)),
        "rules.yml": RULES.read_text(encoding="utf-8"),
        "gpu_rules.yml": _json(gpu_rules()),
        "alertmanager.yml": _json(alertmanager(alerts_to)),
        f"{provisioning}/datasources/hetero_hvd.yml": _json(_datasource()),
        f"{provisioning}/dashboards/hetero_hvd.yml": _json(_provider(path)),
    }
    for name, content in dashboards().items():
        contents[f"grafana/dashboards/{name}.json"] = _json(content)
    return contents


def _prometheus(
    watched: WatchedPlaces, token_file: str | None, ca_file: str | None
) -> dict[str, Any]:
    client: dict[str, Any] = {}
    if token_file:
        # In http_sd_configs the type has no default in Prometheus 2.42: it would send a bare token.
        client["authorization"] = {"type": "Bearer", "credentials_file": token_file}
    if ca_file:
        client["tls_config"] = {"ca_file": ca_file}
    places = (
        watched.driver and _under(watched.driver, "sd"),
        watched.hub and _under(watched.hub, "v1/sd"),
    )
    runs: dict[str, Any] = {
        "job_name": "hetero_hvd",
        # What a run tells of itself holds, also where its target has a label of that name.
        "honor_labels": True,
        "http_sd_configs": [{"url": url, **SOON, **client} for url in places if url],
        **client,
    }
    if watched.runs is not None:
        pattern = f"{watched.runs}/{TARGETS.format('*')}"
        runs["file_sd_configs"] = [{"files": [pattern], **SOON}]
    hubs = []
    if watched.hub is not None:
        scheme, _, target = watched.hub.rstrip("/").partition("://")
        place = {"job_name": "hetero_hvd_hub", "scheme": scheme}
        hubs = [{**place, "static_configs": [{"targets": [target]}], **client}]
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "rule_files": ["gpu_rules.yml", "rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}]},
        "scrape_configs": [runs, *hubs],
    }


def _under(address: str, path: str) -> str:
    return f"{address.rstrip('/')}/{path}"


def _datasource() -> dict[str, Any]:
    source: dict[str, Any] = {
        "name": "Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "isDefault": True,
    }
    # From it follows what $__rate_interval is.
    source |= {"url": "http://localhost:9090", "jsonData": {"timeInterval": SCRAPE_INTERVAL}}
    return {"apiVersion": 1, "datasources": [source]}


def _provider(path: str) -> dict[str, Any]:
    provider = {"name": "hetero_hvd", "type": "file", "options": {"path": path}}
    return {"apiVersion": 1, "providers": [provider]}


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"
