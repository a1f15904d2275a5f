"""What people may call things by whose names cross machines: sessions and phases, and nodes.

The same rule holds and the same line is told on the command line, over HTTP, on the page and in a
script. What is called so may be the name of a file, and no part of a path.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hetero_hvd.errors import UserError
from hetero_hvd.messages import NODE_NAME

MAX_NAME_CHARACTERS = 64
_MAX_SHOWN = 100


class NameRule(NamedTuple):
    """Which names there may be.

    Attributes:
        pattern: A name, from its first character to its last one.
        allowed: The same in words.
    """

    pattern: re.Pattern[str]
    allowed: str

    def check(self, what: str, name: object) -> None:
        """See that something can be called so.

        Args:
            what: It is.
            name: Of it.

        Raises:
            UserError: It cannot.
        """
        if not isinstance(name, str) or self.pattern.fullmatch(name) is None:
            shown = repr(name)
            shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
            raise UserError(f"{what} {shown}: the name must be {self.allowed}")


_AT_BOTH_ENDS = f"at most {MAX_NAME_CHARACTERS}, with a letter or digit at both ends"
RECORDED_NAME = NameRule(
    re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"),
    f"letters, digits, '-', '_' and '.', {_AT_BOTH_ENDS}",
)
"""Of a session, and of a phase, which may become one."""

NODE = NameRule(NODE_NAME, f"letters, digits, '-' and '.', {_AT_BOTH_ENDS}")
"""Of a node, and of a program that sends samples as one."""
