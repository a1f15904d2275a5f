"""The files from which Prometheus, Alertmanager and Grafana can be started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hetero_hvd.monitoring.alertmanager import alertmanager
from hetero_hvd.monitoring.dashboards import dashboards
from hetero_hvd.monitoring.gpu_rules import gpu_rules

ALERTMANAGER = "localhost:9093"
"""Its usual place, beside Prometheus."""

RULES = Path(__file__).with_name("rules.yml")


def stack_files(
    *,
    driver: str,
    token_file: str | None = None,
    ca_file: str | None = None,
    alerts_to: str | None = None,
    hub: str | None = None,
) -> dict[str, str]:
    """prometheus.yml, the rules, alertmanager.yml, and Grafana's files.

    JSON is YAML too, so whatever stands in an address or a path is quoted rightly.

    Args:
        driver: Address of a driver, `http[s]://HOST:PORT`.
        token_file: File with the driver's token for looking; Prometheus reads it, we do not.
        ca_file: Certificate authority of the driver, PEM.
        alerts_to: Where Alertmanager sends alerts; None: nowhere.
        hub: Address of a hub with a queue, which has the same token and authority; None: none.

    Returns:
        Path in a folder to text.
    """
    provisioning = "grafana/provisioning"
    path = "/etc/grafana/dashboards"
    contents = {
        "prometheus.yml": _json(_prometheus(driver, token_file, ca_file, hub)),
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
    driver: str, token_file: str | None, ca_file: str | None, hub: str | None
) -> dict[str, Any]:
    client: dict[str, Any] = {}
    if token_file:
        # In http_sd_configs the type has no default in Prometheus 2.42: it would send a bare token.
        client["authorization"] = {"type": "Bearer", "credentials_file": token_file}
    if ca_file:
        client["tls_config"] = {"ca_file": ca_file}
    discovery = {"url": f"{driver.rstrip('/')}/sd", "refresh_interval": "5s", **client}
    hubs = []
    if hub is not None:
        scheme, _, target = hub.rstrip("/").partition("://")
        place = {"job_name": "hetero_hvd_hub", "scheme": scheme}
        hubs = [{**place, "static_configs": [{"targets": [target]}], **client}]
    return {
        "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
        "rule_files": ["gpu_rules.yml", "rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}]},
        "scrape_configs": [
            {
                "job_name": "hetero_hvd",
                "scheme": driver.partition("://")[0],
                "http_sd_configs": [discovery],
                **client,
            },
            *hubs,
        ],
    }


def _datasource() -> dict[str, Any]:
    source = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "isDefault": True}
    return {"apiVersion": 1, "datasources": [{**source, "url": "http://localhost:9090"}]}


def _provider(path: str) -> dict[str, Any]:
    provider = {"name": "hetero_hvd", "type": "file", "options": {"path": path}}
    return {"apiVersion": 1, "providers": [provider]}


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"
