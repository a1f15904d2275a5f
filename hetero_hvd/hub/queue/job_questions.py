"""Asks drivers of jobs how far they are, through the sockets in their folders."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import msgspec

from hetero_hvd.core.view.job_progress import ProgressFacts
from hetero_hvd.security.local_sockets import short_path

SOCKET, QUESTION = "control.sock", {"progress": None}
SECONDS = 2.0
MAX_ANSWER_BYTES = 2**20


def progress_of(folder: Path) -> ProgressFacts | None:
    """What the driver of a run says; None: none answers, or not what a driver would.

    Args:
        folder: Of the run.
    """
    try:
        with short_path(folder / SOCKET) as path, socket.socket(socket.AF_UNIX) as end:
            end.settimeout(SECONDS)
            end.connect(path)
            end.sendall(json.dumps(QUESTION).encode() + b"\n")
            line = end.makefile("rb").readline(MAX_ANSWER_BYTES)
        return msgspec.json.decode(json.loads(line)["done"], type=ProgressFacts)
    except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError, RecursionError):
        return None
