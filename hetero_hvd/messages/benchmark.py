"""What a benchmark on a node tells; printed as lines of JSON, and kept in its cache."""

from __future__ import annotations

import msgspec

from hetero_hvd.messages.identity import Message


class Speed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One property of a device.

    Attributes:
        what: `matrix product` or `copy`.
        dtype: Such as `float32`.
        per_second: Floating point operations (multiply and add are two), or bytes read and written.
        spread_ratio: Of the repeats, see `core.benchmark.spread`; None: too few.
        num_repeats: Measured after the warm-up.
    """

    what: str
    dtype: str
    per_second: float
    spread_ratio: float | None
    num_repeats: int


class DeviceMeasured(Message, frozen=True):
    """What a device can do.

    Attributes:
        device: In words.
        versions: Of torch, CUDA and so on.
        speeds: Each property.
        is_cached: It was measured earlier.
    """

    device: str
    versions: dict[str, str]
    speeds: tuple[Speed, ...]
    is_cached: bool = False


class SizeMeasured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps of the user's model with one local batch size.

    Attributes:
        local_batch_size: Samples.
        busy_seconds: Median of a step without waits for data.
        spread_ratio: Of the steps; None: too few.
        num_steps: Measured after the warm-up.
    """

    local_batch_size: int
    busy_seconds: float
    spread_ratio: float | None
    num_steps: int


class ModelMeasured(Message, frozen=True):
    """How fast a device trains the user's model.

    Attributes:
        device: In words; as in `WorkersJoined`.
        model: Class and digest; as in `WorkersJoined`.
        global_batch_size: Of the script.
        micro_batch_size: Samples in one forward pass at most; 0 = not limited.
        sizes: By local batch size.
        overhead_seconds: Of the curve through them, see `core.balance.step_time.StepTimeModel`.
        seconds_per_sample: Of the same.
        read_samples_per_second: From the script's dataset, in one process; None: not measured.
        is_cached: It was measured earlier.
    """

    device: str
    model: str
    global_batch_size: int
    micro_batch_size: int
    sizes: tuple[SizeMeasured, ...]
    overhead_seconds: float
    seconds_per_sample: float
    read_samples_per_second: float | None
    is_cached: bool = False


class BenchmarkProgress(Message, frozen=True):
    """For people who wait.

    Attributes:
        text: What was done just now.
    """

    text: str


BenchmarkLine = DeviceMeasured | ModelMeasured | BenchmarkProgress
