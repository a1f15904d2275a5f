"""What a supervisor says among the output of its worker: signs, which are taken out of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from hetero_hvd.probes.sampling.sample_signs import BEGIN, MAX_SIGN_BYTES, SamplePieces

_SECONDS = rb"(\d{1,15}\.\d{1,9})"
SIGN = re.compile(rb"\x01hetero-hvd:(?:(.) %b %b|sample ([-\w/=+ ]+))\x01" % (_SECONDS, _SECONDS))
"""What does not fit is none: the script may write such bytes, too."""


class Signs(NamedTuple):
    """What was found in a piece of output.

    Attributes:
        looks: Of the worker's process: state as ps has it, its processor time and that of all that
            it has started, seconds.
        samples: Of the node: JSON, as a supervisor would write it; anything, if the script did.
    """

    looks: list[tuple[str, float, float]]
    samples: list[bytes]


class SignFilter:
    """Takes the signs out of a worker's output, wherever it was cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._pieces = SamplePieces()

    def feed(self, data: bytes) -> tuple[bytes, Signs]:
        """The output without the signs in the next piece, and these."""
        data = self._rest + data
        found = Signs([], [])
        for match in SIGN.finditer(data):
            if match[1] is None:
                whole = self._pieces.add(match[4])
                found.samples.extend([whole] if whole else [])
            else:
                state = match[1].decode(errors="replace")
                found.looks.append((state, float(match[2]), float(match[3])))
        data = SIGN.sub(b"", data)
        start = data.rfind(b"\x01")
        is_cut = start >= 0 and may_be_a_sign(data[start:])
        self._rest = data[start:] if is_cut else b""
        return (data[:start] if is_cut else data), found

    def flush(self) -> bytes:
        """What was kept back."""
        rest, self._rest = self._rest, b""
        return rest


def may_be_a_sign(beginning: bytes) -> bool:
    """Whether more is needed to tell what this is, which begins as a sign does."""
    head = beginning[: len(BEGIN)]
    return len(beginning) < MAX_SIGN_BYTES and BEGIN.startswith(head)
