"""One slot's part of `hetero-hvd benchmark`: `python -m hetero_hvd.worker.benchmark`.

Measures the device; then becomes the user's script, in which `Trainer` measures the model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import msgspec

from hetero_hvd.core.benchmark import is_valid, verdict
from hetero_hvd.messages.benchmark import BenchmarkProgress, DeviceMeasured, Speed
from hetero_hvd.probes import benchmark_cache
from hetero_hvd.worker.benchmark.device_speed import measure_device
from hetero_hvd.worker.benchmark.model_benchmark import FRESH, SECONDS, cache_key, tell
from hetero_hvd.worker.session.admission import device
from hetero_hvd.worker.session.self_description import describe_device, software

DEVICE_RATIO = 0.2
MODEL_RATIO = 0.5
"""Parts of the time that the device and the model may take; the rest goes into starting."""


def main(words: Sequence[str]) -> None:
    """Measure; does not return where there is a command."""
    parser = argparse.ArgumentParser(prog="hetero_hvd.worker.benchmark")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args(words)
    tell(_device(DEVICE_RATIO * arguments.seconds, is_fresh=arguments.fresh))
    if arguments.command:
        os.environ[SECONDS] = str(MODEL_RATIO * arguments.seconds)
        if arguments.fresh:
            os.environ[FRESH] = "1"
        command = arguments.command
        if command[0].endswith(".py"):
            command = [sys.executable, *command]
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
