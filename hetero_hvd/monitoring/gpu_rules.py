"""Recording rules that give of each GPU one value, whoever has told of it.

The driver of each run tells of it, an agent may, and where neither does, a dcgm-exporter. Panels
and alerts take what is recorded here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

RECORDED = "gpu:hetero_hvd_"
_OURS = "hetero_hvd_gpu_"
_DCGM_LABELS = {"node": "Hostname", "device": "gpu", "uuid": "UUID"}
"""Our labels to those of dcgm-exporter."""


class _Figure(NamedTuple):
    """A figure of a GPU.

    Attributes:
        name: Of the recorded series, without its beginning.
        ours: Query of our own metrics; `{}` is where their names begin.
        dcgm: Value of its further label, empty if it has none, to a query of dcgm-exporter's.
        label: Its further label; empty: it has none.
    """

    name: str
    ours: str
    dcgm: dict[str, str]
    label: str = ""


_FIGURES = (
    _Figure("use_ratio", "{}use_ratio", {"": "DCGM_FI_DEV_GPU_UTIL / 100"}),
    _Figure("memory_used_bytes", "{}memory_used_bytes", {"": "DCGM_FI_DEV_FB_USED * 2^20"}),
    _Figure("temperature_celsius", "{}temperature_celsius", {"": "DCGM_FI_DEV_GPU_TEMP"}),
    _Figure("power_watts", "{}power_watts", {"": "DCGM_FI_DEV_POWER_USAGE"}),
    _Figure(
        "energy_joules",
        "{}energy_joules_total",
        {"": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION / 1000"},
    ),
    _Figure("dram_active_ratio", "{}dram_active_ratio", {"": "DCGM_FI_PROF_DRAM_ACTIVE"}),
    _Figure(
        "throttled_ratio",
        "rate({}throttled_seconds_total[2m])",
        {
            "thermal": "rate(DCGM_FI_DEV_THERMAL_VIOLATION[2m]) / 1e9",
            "power": "rate(DCGM_FI_DEV_POWER_VIOLATION[2m]) / 1e9",
        },
        "reason",
    ),
    _Figure(
        "new_errors",
        'increase({}errors_total{{kind=~"ecc_uncorrected|xid"}}[10m])',
        {
            "ecc_uncorrected": "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10m])",
            "xid": "changes(DCGM_FI_DEV_XID_ERRORS[10m])",
        },
        "kind",
    ),
)


def gpu_rules() -> dict[str, Any]:
    """What Prometheus reads as a file of rules."""
    rules = [{"record": RECORDED + one.name, "expr": _query(one)} for one in _FIGURES]
    return {"groups": [{"name": "hetero_hvd_gpus", "interval": "5s", "rules": rules}]}


def _query(figure: _Figure) -> str:
    kept = ", ".join((*_DCGM_LABELS, *filter(None, [figure.label])))
    same = ", ".join(filter(None, ("uuid", figure.label)))
    parts = [f"max by ({kept}) ({figure.ours.format(_OURS)})"]
    for value, query in figure.dcgm.items():
        told = query
        for label, theirs in _DCGM_LABELS.items():
            told = f'label_replace({told}, "{label}", "$1", "{theirs}", "(.*)")'
        if figure.label:
            told = f'label_replace({told}, "{figure.label}", "{value}", "", "")'
        parts.append(f"max by ({kept}) ({told})")
    return f" or on ({same}) ".join(parts)
