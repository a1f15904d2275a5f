"""What a node's answers are like, as far as somebody here reads them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import msgspec

from hetero_hvd.errors import NodeError


class Gpu(TypedDict):
    """A GPU of a node."""

    name: str
    memory_bytes: int | None


class Machine(TypedDict):
    """What a worker may use there."""

    cores: float
    memory_bytes: int
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
    problems: NotRequired[list[ToldProblem]]


class Seen(TypedDict):
    """See `examination_program.look`."""

    interpreter: str
    directory: bool
    script: str | None
    missing: list[str]
    disk_bytes: int
    shm_bytes: int | None
    digest: str | None
    versions: NotRequired[dict[str, str | None]]
    diagnosis: NotRequired[Findings]


class ListenAnswer(TypedDict):
    """See `examination_program.listen`."""

    address: str
    port: int
    driver: str


def checked(told: Any, kind: Any) -> Any:  # noqa: ANN401 - whatever came, and a type
    """An answer, with whatever else is in it.

    Args:
        told: What came.
        kind: What it has to be.

    Raises:
        NodeError: It is something else.
    """
    try:
        msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise NodeError(
            f"its answers are not those of hetero_hvd: {error}",
            "see what runs there in the place of Python",
        ) from error
    return told
