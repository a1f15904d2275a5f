"""One slot's part of `hetero-hvd benchmark`: `python -m hetero_hvd.worker.benchmark`.

Measures the device; then becomes the user's script, in which `Trainer` measures the model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

from hetero_hvd.core.benchmark import is_valid, verdict
from hetero_hvd.messages.benchmark import BenchmarkProgress, DeviceMeasured, Speed
from hetero_hvd.probes import benchmark_cache
from hetero_hvd.worker.benchmark.device_speed import measure_device
from hetero_hvd.worker.benchmark.model_benchmark import cache_key, tell
from hetero_hvd.worker.session.launch_settings import read_launch_settings
from hetero_hvd.worker.session.self_description import describe_device, software
from hetero_hvd.worker.session.worker_context import device

DEVICE_RATIO = 0.2
"""Part of the time that the device may take; what it and the model leave goes into starting."""


def main(words: Sequence[str]) -> None:
    """Measure; does not return where there is a command.

    Args:
        words: The user's script and its arguments; empty: the device only.
    """
    settings = read_launch_settings().launch.benchmark
    if settings is None:
        raise SystemExit("this is a part of hetero-hvd benchmark, which starts it")
    tell(_device(DEVICE_RATIO * settings.seconds, is_fresh=settings.is_fresh))
    if words:
        command = [sys.executable, *words] if words[0].endswith(".py") else [*words]
        os.execvp(command[0], command)  # noqa: S606 - the user's own command, no shell


def _device(budget_seconds: float, *, is_fresh: bool) -> DeviceMeasured:
    own = device()
    key = cache_key(own, what="device")
    known = None if is_fresh else benchmark_cache.load(key, DeviceMeasured)
    if known is not None:
        return msgspec.structs.replace(known, is_cached=True)
    speeds = []
    for speed in measure_device(own, budget_seconds=budget_seconds):
        speeds.append(speed)
        tell(BenchmarkProgress(text=_words(speed)))
    result = DeviceMeasured(
        device=describe_device(own), versions=software(own), speeds=tuple(speeds)
    )
    is_sound = all(is_valid(speed.spread_ratio) for speed in speeds)
    benchmark_cache.save(key, result, is_valid=is_sound)
    return result


def _words(speed: Speed) -> str:
    unit = "GB/s" if speed.what == "copy" else "GFLOP/s"
    amount = f"{speed.per_second / 1e9:.3g} {unit}"
    return f"{speed.what} {speed.dtype}: {amount} ({verdict(speed.spread_ratio)})"


if __name__ == "__main__":
    main(sys.argv[1:])
