"""What was measured on this node earlier, for its adverts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hetero_hvd.core.benchmark import is_valid
from hetero_hvd.discovery.advert import MAX_FIGURES, MAX_TEXT
from hetero_hvd.discovery.machine import gpu_uuids
from hetero_hvd.messages.benchmark import DeviceMeasured, ModelMeasured
from hetero_hvd.probes import benchmark_cache
from hetero_hvd.probes.machine.hardware import allowed_cores
from hetero_hvd.probes.machine.processor import probe_processor

BOTH: Any = ModelMeasured | DeviceMeasured
_RANKS = {"matrix": 1, "copy": 2}  # by the first word of a name; a model's is another


def own_figures(visible: Sequence[str] | None = None) -> dict[str, float]:
    """The newest valid figures of `hetero-hvd benchmark` on this node's devices, the models first.

    Of several devices the slowest counts, so that no slot is slower than the node says. The cache's
    folder may be shared by many machines: only what was measured on these devices counts, and
    nothing that was emulated.

    Args:
        visible: What CUDA_VISIBLE_DEVICES names; None: it is not set.

    Returns:
        At most 8 figures by name, each per second: floating point operations or bytes for a
        property of the device, such as `matrix product float32`; samples for a model, at the batch
        size that suits it best.
    """
    uuids, processor = gpu_uuids(visible), probe_processor().model
    newest: dict[tuple[str, str], float] = {}
    for key, result in benchmark_cache.entries(BOTH):
        for name, amount in _amounts(result) if _is_ours(key, uuids, processor) else ():
            if math.isfinite(amount) and len(name) <= MAX_TEXT:
                newest.setdefault((name, key.get("uuid", "")), amount)
    slowest: dict[str, float] = {}
    for (name, _), amount in newest.items():
        slowest[name] = min(amount, slowest.get(name, amount))
    ranked = sorted(slowest, key=lambda name: _RANKS.get(name.split()[0], 0))
    return {name: slowest[name] for name in ranked[:MAX_FIGURES]}


def _is_ours(key: dict[str, str], uuids: tuple[str, ...], processor: str) -> bool:
    if key.get("emulate", "None") != "None":
        return False
    if uuid := key.get("uuid"):
        return uuid in uuids
    is_same = key.get("device", "").startswith(f"{processor}, ")
    return is_same and key.get("cores") == f"{allowed_cores():g}"


def _amounts(result: ModelMeasured | DeviceMeasured) -> Iterator[tuple[str, float]]:
    if isinstance(result, ModelMeasured):
        sizes = [size for size in result.sizes if is_valid(size.spread_ratio)]
        if sizes:
            yield result.model, max(size.local_batch_size / size.busy_seconds for size in sizes)
        return
    for speed in result.speeds:
        if is_valid(speed.spread_ratio):
            yield f"{speed.what} {speed.dtype}", speed.per_second
