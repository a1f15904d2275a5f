"""The exit code as a supervisor tells it, where the way to its node has exit codes of its own.

Slurm's srun ends with 0 where a node has failed, and with 1 where it could start nothing. So the
supervisor there says good-bye, as the last that it writes; whoever ends without has been lost.
"""

from __future__ import annotations

import re

_GOODBYE = re.compile(rb"\x01hetero-hvd:goodbye (\d{1,3})\x01")
_BEGINNING = b"\x01hetero-hvd:goodbye "
_DIGITS = re.compile(rb"\d{0,3}")


class Goodbye:
    """Takes the good-bye out of what a supervisor and its worker write, wherever that was cut.

    Attributes:
        exit_code: That was told; None: nothing was.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What is known to be no good-bye, of what was kept back and the next piece."""
        data = self._rest + data
        for match in _GOODBYE.finditer(data):
            self.exit_code = int(match[1])
        data = _GOODBYE.sub(b"", data)
        start = data.rfind(b"\x01")
        is_cut = start >= 0 and _may_be_one(data[start:])
        self._rest = data[start:] if is_cut else b""
        return data[:start] if is_cut else data

    def flush(self) -> bytes:
        """What was kept back."""
        rest, self._rest = self._rest, b""
        return rest


def _may_be_one(beginning: bytes) -> bool:
    head, digits = beginning[: len(_BEGINNING)], beginning[len(_BEGINNING) :]
    return _BEGINNING.startswith(head) and _DIGITS.fullmatch(digits) is not None
