"""The exit code as a supervisor tells it, where the way to its node has exit codes of its own.

Slurm's srun ends with 0 where a node has failed, and with 1 where it could start nothing. So the
supervisor there says good-bye, as the last that it writes; whoever ends without has been lost.
"""

from __future__ import annotations

import re

from hetero_hvd.driver.output.signs import SIGN, may_be_a_sign

_GOODBYE = re.compile(rb"\x01hetero-hvd:goodbye (\d{1,3})\x01")


class Goodbye:
    """Takes the good-bye out of what a supervisor and its worker write, wherever that was cut.

    Signs of other kinds are passed on whole, as soon as they are: their last byte is what a
    good-bye begins with.

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
        is_end = any(sign.end() == len(data) for sign in SIGN.finditer(data))
        is_cut = start >= 0 and not is_end and may_be_a_sign(data[start:])
        self._rest = data[start:] if is_cut else b""
        return data[:start] if is_cut else data

    def flush(self) -> bytes:
        """What was kept back."""
        rest, self._rest = self._rest, b""
        return rest
