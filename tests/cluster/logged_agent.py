"""`hetero-hvd agent` that also notes all that it samples: `logged_agent.py LOG agent WORD...`.

Its spool may be as small as 16 KiB, so that minutes without a hub are seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from hetero_hvd.agent.spool import SampleSpool
from hetero_hvd.cli import main
from hetero_hvd.cli.cluster import agent
from hetero_hvd.core.recording.framing import framed, records_in


class Noted(NamedTuple):
    """A sample that an agent has taken.

    Attributes:
        number: In its stream.
        sample: As it is sent.
        bytes_left: In the spool, if others were dropped to make room for this one; else 0.
    """

    number: int
    sample: bytes
    bytes_left: int


def read_log(path):
    """What an agent has sampled, in order."""
    content = path.read_bytes() if path.exists() else b""
    return [Noted(*msgspec.msgpack.decode(found.record)) for found in records_in(content)]


def note(log):
    """Have all that is sampled from now on in a file."""
    take = SampleSpool.append

    def append(spool, at_seconds, sample):
        number, before = spool._next_sequence, spool.num_dropped
        take(spool, at_seconds, sample)
        size = spool.size_bytes if spool.num_dropped > before else 0
        log.write(framed(msgspec.msgpack.encode(Noted(number, sample, size))))

    SampleSpool.append = append


if __name__ == "__main__":
    agent.MIN_SPOOL_BYTES = 2**14
    with Path(sys.argv[1]).open("ab", buffering=0) as file:
        note(file)
        sys.exit(main(sys.argv[2:]))
