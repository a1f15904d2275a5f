"""Where alerts go: what Alertmanager reads. JSON is YAML too."""

from __future__ import annotations

from typing import Any

RECEIVER = "hetero_hvd"
_OURS = 'alertname=~"HeteroHvd.+"'

CAUSES_OF_ALERTS = {
    "HeteroHvdDriverLost": _OURS,
    "HeteroHvdFailed": _OURS,
    "HeteroHvdGuardDrained": 'alertname="HeteroHvdLostWorkers"',
}
"""Alert to those that only follow from it, in the same run, and are not sent beside it."""


def alertmanager(alerts_to: str | None) -> dict[str, Any]:
    """The configuration.

    Args:
        alerts_to: URL that takes Alertmanager's JSON; None: alerts are on its page only.
    """
    receiver: dict[str, Any] = {"name": RECEIVER}
    if alerts_to is not None:
        receiver["webhook_configs"] = [{"url": alerts_to, "send_resolved": True}]
    return {
        "route": {
            "receiver": RECEIVER,
            "group_by": ["alertname", "run_id", "node"],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "receiver": RECEIVER,
                    "matchers": ['severity="critical"'],
                    "group_wait": "1s",
                    "repeat_interval": "1h",
                }
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": [f'alertname="{cause}"'],
                "target_matchers": [follows, f'alertname!="{cause}"'],
                "equal": ["run_id"],
            }
            for cause, follows in CAUSES_OF_ALERTS.items()
        ],
        "receivers": [receiver],
    }
