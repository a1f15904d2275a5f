"""What a job asks of each of its devices, such as `memory>=16GiB` or `kind!=t4`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetero_hvd.errors import UserError

_NEED = re.compile(r"\s*(memory|kind|node)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
ALLOWED = "memory>=16GiB, kind==v100 or node!=alpha; memory takes >=, <=, >, <, ==, !="


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """A condition on one device.

    Attributes:
        what: `memory`, `kind` or `node`.
        comparison: `>=`, `<=`, `==`, `!=`, `>` or `<`; for a kind or a node `==` or `!=` only.
        value: Bytes for memory, else a name.
    """

    what: str
    comparison: str
    value: float | str

    @classmethod
    def parse(cls, text: str) -> DeviceNeed:
        """Read one condition.

        Raises:
            UserError: It is none.
        """
        match = _NEED.fullmatch(text)
        if match is None:
            raise UserError(f"needs: found {text!r}, must be a condition such as {ALLOWED}")
        what, comparison, value = match.groups()
        if what == "memory":
            return cls(what, comparison, float(memory_bytes(value, where="needs")))
        if comparison not in ("==", "!="):
            raise UserError(f"needs: found {text!r}: a {what} is compared by == or != only")
        return cls(what, comparison, value)

    def is_met_by(self, *, memory_bytes: int, kind: str, node: str) -> bool:
        """Whether a device fulfils it."""
        facts: dict[str, float | str] = {"memory": memory_bytes, "kind": kind, "node": node}
        return _COMPARE[self.comparison](facts[self.what], self.value)

    def __str__(self) -> str:
        value = _size(self.value) if isinstance(self.value, float) else self.value
        return f"{self.what}{self.comparison}{value}"


def _size(num_bytes: float) -> str:
    """As it would be written: in the unit of which it is the smallest whole number."""
    units = [(1000.0, ""), (1024.0, "i")]
    found = [
        (num_bytes / base**power, f"{unit}{binary}B")
        for unit, power in _POWERS.items()
        for base, binary in (units if unit else units[:1])
        if not num_bytes % base**power
    ]
    amount, unit = min(found)
    return f"{amount:.0f}{unit}"


def memory_bytes(text: str, *, where: str) -> int:
    """A size of memory in bytes.

    Args:
        text: Such as `16GiB`, `512MB` or a number of bytes.
        where: What the message begins with.

    Raises:
        UserError: It is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UserError(f"{where}: found {text!r}, must be a size such as 16GiB, 512MB or 8000000")
    amount, unit, binary = match.groups()
    return round(float(amount) * (1024.0 if binary else 1000.0) ** _POWERS[unit])
