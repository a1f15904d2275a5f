"""Whole numbers in text that is not ours: of a variable, a flag, another program."""

from __future__ import annotations

MAX_DIGITS = 15
"""All that is counted anywhere fits; Python itself refuses thousands of digits by an error."""


def whole_number(text: str) -> int | None:
    """What plain decimal digits say; None: it is something else, or out of all proportion.

    `str.isdigit` is also true of signs that `int` does not read, such as a small 2 above the line.
    """
    is_plain = text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= MAX_DIGITS
    return int(text.lstrip("0") or "0") if is_plain else None
