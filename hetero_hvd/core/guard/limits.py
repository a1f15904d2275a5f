"""What counts as an ailing device, and what is done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Reason = Literal["temperature", "throttled", "xid", "ecc"]
REASONS: tuple[Reason, ...] = get_args(Reason)
Reply = Literal["drain", "alert", "off"]

MAX_RETURN_SECONDS = 3600.0
"""A device that ails again and again is tried once an hour."""


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """The limits of one job; `config.guard` says what each is for.

    Attributes:
        temperature: Of a GPU, °C; 0: none.
        cpu_temperature: Of processors, °C; 0: none.
        for_seconds: For which a device must be too hot, or throttled.
        return_degrees: So much below its limit it is cool again, °C.
        return_seconds: For which it must be well before its workers come back.
        throttled: What follows when heat or a lack of power holds its clock down.
        xid: What follows from an error of its hardware that its driver reports.
        ecc: What follows from an error of its memory that could not be corrected.
    """

    temperature: float = 87.0
    cpu_temperature: float = 100.0
    for_seconds: float = 60.0
    return_degrees: float = 10.0
    return_seconds: float = 120.0
    throttled: Reply = "alert"
    xid: Reply = "drain"
    ecc: Reply = "drain"

    def reply_to(self, reason: Reason) -> Reply:
        """What follows from a reason; who asks for no limit of the temperature has none."""
        reply: Reply = "drain" if reason == "temperature" else getattr(self, reason)
        return reply
