"""Grafana dashboards as plain data: the shape around the panels, for Grafana 11.

grafana-foundation-sdk does not build them: its versions carry an epoch of build time, so that no
lower bound can be stated. It reads them in a test, as Grafana's own types.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hetero_hvd.monitoring.panels import (
    BAD,
    GOOD,
    PANELS,
    RUN,
    STATE_COLORS,
    P,
    Panel,
    PanelKind,
    Query,
)

SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24
"""Of Grafana's grid."""


class Variable(NamedTuple):
    """Of a dashboard; several values may be chosen.

    Attributes:
        label: For people.
        query: Of Grafana's Prometheus source.
        regex: What of an answer is its text, and what its value; empty: all.
        sort: As Grafana numbers the ways: 1 by letters, 3 by numbers.
    """

    label: str
    query: str
    regex: str = ""
    sort: int = 1


VARIABLES = {
    "run": Variable("Run", f"label_values({P}run_info, run)"),
    "worker": Variable(
        "Rank and worker",
        f"query_result({P}worker_rank{RUN})",
        r'/worker="(?<value>[^"]+)".*} (?<text>\d+) /',
        sort=3,
    ),
    "node": Variable("Node", f"label_values({P}node_load, node)"),
}
ANNOTATIONS = {
    "resets": f"changes({P}rendezvous_id{RUN}[1m]) > 0",
    "plan changes": f'increase({P}balancer_decisions_total{{run=~"$run",action="move"}}[1m]) > 0',
}
WANTED = {"cluster": ("run", "node"), "worker": ("run", "worker")}

LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
OPTIONS: dict[PanelKind, dict[str, Any]] = {
    "stat": {
        "reduceOptions": LAST,
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "gauge": {
        "reduceOptions": LAST,
        "orientation": "auto",
        "showThresholdLabels": False,
        "showThresholdMarkers": True,
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.8,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5,
                  "fill": "dark-orange", "reverse": False},
        "cellGap": 1,
        "showValue": "never",
        "rowsFrame": {"layout": "auto"},
        "filterValues": {"le": 1e-9},
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    },
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "table", "placement": "bottom",
                   "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}  # fmt: skip
CUSTOM: dict[PanelKind, dict[str, Any]] = {
    "timeseries": {"lineWidth": 1, "fillOpacity": 5, "showPoints": "auto", "spanNulls": False},
    "state-timeline": {"lineWidth": 0, "fillOpacity": 70},
}


def dashboards() -> dict[str, dict[str, Any]]:
    """Name to content, as Grafana's file provisioning reads it."""
    return {name: _dashboard(name) for name in PANELS}


def _dashboard(name: str) -> dict[str, Any]:
    wanted = WANTED.get(name, ("run",))
    return {
        "uid": f"hetero-hvd-{name}",
        "title": f"hetero_hvd: {name}",
        "tags": ["hetero_hvd"],
        "schemaVersion": 40,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "graphTooltip": 1,
        "links": [_others()],
        "templating": {"list": [_source(), *map(_variable, wanted)]},
        "annotations": {"list": [_mark(title, query) for title, query in ANNOTATIONS.items()]},
        "panels": _placed(PANELS[name]),
    }


def _others() -> dict[str, Any]:
    """The way to the other dashboards, with what is chosen here."""
    return {
        "type": "dashboards",
        "title": "hetero_hvd",
        "tags": ["hetero_hvd"],
        "icon": "external link",
        "tooltip": "",
        "url": "",
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    found = VARIABLES[name]
    return {
        "name": name,
        "label": found.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": found.query, "refId": name},
        "regex": found.regex,
        "refresh": 2,
        "sort": found.sort,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _mark(title: str, query: str) -> dict[str, Any]:
    color = {"iconColor": "blue"}
    return {"name": title, "datasource": SOURCE, "enable": True, "expr": query, **color}


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """One beside the other, from top left on, as long as a row has room."""
    found, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        found.append({"id": number, "gridPos": place, **_panel(panel)})
        x, height = x + panel.width, max(height, panel.height)
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    content: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": [_target(panel, number, each) for number, each in enumerate(panel.queries)],
    }
    if panel.kind == "table":
        names = {f"Value #{_letter(n)}": each.legend for n, each in enumerate(panel.queries)}
        organize = {"excludeByName": {"Time": True}, "renameByName": names}
        content["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": organize},
        ]
    return content


def _defaults(panel: Panel) -> dict[str, Any]:
    colors = [BAD if panel.is_less_worse else GOOD, *(color for _, color in panel.thresholds)]
    values = [None, *(value for value, _ in panel.thresholds)]
    steps = [{"value": v, "color": c} for v, c in zip(values, colors, strict=True)]
    found: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": dict(CUSTOM.get(panel.kind, {})),
    }
    if panel.kind == "timeseries" and panel.thresholds:
        found["custom"]["thresholdsStyle"] = {"mode": "dashed"}
    if panel.maximum is not None:
        found |= {"min": 0, "max": panel.maximum}
    if panel.kind == "state-timeline":
        states = {
            str(number): {"text": state, "color": color, "index": number}
            for number, (state, color) in enumerate(STATE_COLORS.items(), 1)
        }
        found["mappings"] = [{"type": "value", "options": states}]
    if panel.kind in ("stat", "gauge") and panel.thresholds:
        found["color"] = {"mode": "thresholds"}
    return found


def _target(panel: Panel, number: int, query: Query) -> dict[str, Any]:
    found: dict[str, Any] = {
        "refId": _letter(number),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
    }
    if panel.kind == "table":
        found |= {"format": "table", "instant": True, "range": False}
    if panel.kind == "heatmap":
        found |= {"format": "heatmap", "exemplar": True}
    return found


def _letter(number: int) -> str:
    return chr(ord("A") + number)
