"""What a step of training is made of: the one table that clocks, records, metrics and pages follow.

A further phase is a name in `Phase` and an entry in `STEP_PARTS`, a column of `StepTiming`, and
the place where it is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hetero_hvd.errors import InvariantError

Phase = Literal[
    "data_wait", "transfer", "forward", "backward", "comm_wait", "optimizer", "evaluation"
]
"""What the trainer times."""


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """One part of a step.

    Attributes:
        name: A `Phase`, or `other` for the rest of the step.
        heading: Of its column in tables for people, at most 7 characters.
        letter: Of its bar in text.
        colour: Of its bar on pages and in plots, as CSS and matplotlib take it.
        terminal_colour: Of its bar on a terminal, as `rich` takes it.
        owner: `step`: the worker's own work in each step; `others`: waiting for other workers;
            `script`: the script's own work, which only some steps contain.
        cause: The `Cause` that a worker which loses time there is slow by; what `step` owns has
            one.
        is_on_device: Whether the device's queue takes the time, where there is a device.
    """

    name: str
    heading: str
    letter: str
    colour: str
    terminal_colour: str
    owner: Literal["step", "others", "script"] = "step"
    cause: str = ""
    is_on_device: bool = False

    def __post_init__(self) -> None:
        """Check that lost time of the worker's own has a name."""
        if self.owner == "step" and not self.cause:
            raise InvariantError(f"phase {self.name}: the worker's own time needs a cause")

    @property
    def column(self) -> str:
        """Its column of `StepTiming` and of a run's records."""
        return f"{self.name}_seconds"

    @property
    def words(self) -> str:
        """Its name for people."""
        return self.name.replace("_", " ")


STEP_PARTS = (
    StepPart(
        name="data_wait",
        heading="data",
        letter="d",
        colour="#dc2626",
        terminal_colour="red",
        cause="input",
    ),
    StepPart(
        name="transfer",
        heading="copy",
        letter="t",
        colour="#d97706",
        terminal_colour="dark_orange",
        cause="transfer",
        is_on_device=True,
    ),
    StepPart(
        name="forward",
        heading="fwd",
        letter="f",
        colour="#2563eb",
        terminal_colour="blue",
        cause="compute",
        is_on_device=True,
    ),
    StepPart(
        name="backward",
        heading="bwd",
        letter="b",
        colour="#0891b2",
        terminal_colour="cyan",
        cause="compute",
        is_on_device=True,
    ),
    StepPart(
        name="comm_wait",
        heading="comm",
        letter=".",
        colour="#9ca3af",
        terminal_colour="bright_black",
        owner="others",
    ),
    StepPart(
        name="optimizer",
        heading="opt",
        letter="o",
        colour="#7c3aed",
        terminal_colour="magenta",
        cause="optimizer",
        is_on_device=True,
    ),
    StepPart(
        name="evaluation",
        heading="eval",
        letter="e",
        colour="#db2777",
        terminal_colour="green",
        owner="script",
    ),
    StepPart(
        name="other",
        heading="other",
        letter="_",
        colour="#d4d4d8",
        terminal_colour="white",
        owner="script",
        cause="script",
    ),
)
"""All of a step, in the order in which it goes through them; the rest of it last."""

PHASES = tuple(part.name for part in STEP_PARTS if part.name != "other")
"""What the trainer times, in that order."""

OWN_PHASES = tuple(part.name for part in STEP_PARTS if part.owner == "step")
"""A worker's own work in a step: no wait for others, and nothing that only some steps contain."""

DEVICE_PHASES = frozenset(part.name for part in STEP_PARTS if part.is_on_device)
"""What the device's clock times where there is one; the host's clock times the others."""


def columns_of(cause: str) -> tuple[str, ...]:
    """The columns of `StepTiming` in which a worker loses time by some cause."""
    return tuple(part.column for part in STEP_PARTS if part.cause == cause)
