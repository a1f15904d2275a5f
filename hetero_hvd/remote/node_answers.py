"""What a node's answers are like, as far as somebody here reads them: all of them pass `checked`.

What answers there may be of another version, or no program of ours at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from hetero_hvd.errors import NodeError

MAX_DEPTH = 50
"""Of lists in lists; what is deeper cannot be printed again."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class Gpu(TypedDict):
    """A GPU of a node."""

    name: str
    memory_bytes: Amount | None


class Machine(TypedDict):
    """What a worker may use there."""

    cores: Seconds
    memory_bytes: Amount
    gpus: list[Gpu]


class ToldProblem(TypedDict):
    """What does not work there."""

    what: str
    consequence: str
    remedy: str
    stops_training: bool


class Findings(TypedDict):
    """What the doctor has found there."""

    hardware: NotRequired[Machine | None]
    devices: NotRequired[list[str]]
    problems: NotRequired[list[ToldProblem]]


class Seen(TypedDict):
    """See `examination_program.look`."""

    interpreter: str
    directory: bool
    directory_error: NotRequired[str | None]
    script: str | None
    missing: list[str]
    disk_bytes: Amount | None
    shm_bytes: Amount | None
    digest: str | None
    versions: NotRequired[dict[str, str | None]]
    diagnosis: NotRequired[Findings]


class ListenAnswer(TypedDict):
    """See `examination_program.listen`."""

    address: str
    port: int
    driver: str


class InstallPlace(TypedDict):
    """See `environment_program.look`."""

    path: str
    machine: str
    libc: str
    fingerprint: str | None
    packages: list[str]
    free_bytes: Amount
    is_foreign: bool
    is_busy: bool


class ProcessorAnswer(TypedDict):
    """See `Processor`."""

    model: str
    num_cpus: Amount


class MemoryAnswer(TypedDict):
    """See `Memory`."""

    total_bytes: Amount


class InterfaceAnswer(TypedDict):
    """See `Interface`."""

    name: str
    is_up: bool
    speed_bits_per_second: Amount | None


class IndexedGpu(Gpu):
    """See `GpuReport`."""

    index: int


class GpuAnswer(TypedDict):
    """See `GpuSurvey`."""

    gpus: list[IndexedGpu]
    problem: str | None


class InventoryAnswer(TypedDict):
    """See `Inventory`."""

    processor: ProcessorAnswer
    memory: MemoryAnswer
    interfaces: list[InterfaceAnswer]
    gpus: GpuAnswer


class HardwareAnswer(TypedDict):
    """See `hardware_program.look`."""

    inventory: InventoryAnswer
    sample: dict[str, Any]


ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "examination_program": {
        "clock": Seconds,
        "look": Seen,
        "listen": ListenAnswer,
        "reach": dict[str, str],
    },
    "environment_program": {"look": InstallPlace, "install": str},
    "hardware_program": {"look": HardwareAnswer},
}
"""Program to function to what it answers."""


def checked(program: str, function: str, told: Any) -> Any:  # noqa: ANN401 - whatever came
    """An answer, with whatever else is in it.

    Args:
        program: That gave it.
        function: Of the program.
        told: What came.

    Raises:
        NodeError: It is something else than that function gives.
    """
    why_not = "nested too deep"
    try:
        if _is_within(told, MAX_DEPTH):
            msgspec.convert(told, ANSWERS[program][function])
            return told
    except (msgspec.ValidationError, ValueError) as error:  # also halves of characters
        why_not = str(error)
    raise NodeError(
        f"its answers are not those of hetero_hvd: {why_not}",
        "see what runs there in the place of Python",
    )


def _is_within(told: Any, depth: int) -> bool:  # noqa: ANN401 - any JSON
    inner = told.values() if isinstance(told, dict) else told if isinstance(told, list) else ()
    return depth > 0 and all(_is_within(one, depth - 1) for one in inner)
