"""Asks drivers of jobs how far they are, through the sockets in their folders."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import msgspec

from hetero_hvd.core.queue.set_rate import RING
from hetero_hvd.core.view.queued.job_progress import ProgressFacts
from hetero_hvd.security.local_sockets import peer_of, short_path

MAX_CHARACTERS = 1000
"""Of the name of a model, and of what a guard says of a node."""

SOCKET, QUESTION = "control.sock", {"progress": None}
SECONDS = 2.0
MAX_ANSWER_BYTES = 2**20
LEAST_RATE, MOST = 1e-9, 1e18
"""Samples, and of them per second; a plan that counts with others is none."""


def progress_of(folder: Path, uid: int) -> ProgressFacts | None:
    """What the driver of a run says; None: none answers, or not what a driver would.

    Args:
        folder: Of the run.
        uid: Of its user: nobody else is asked, whatever the folder's socket may be.
    """
    try:
        with short_path(folder / SOCKET) as path, socket.socket(socket.AF_UNIX) as end:
            end.settimeout(SECONDS)
            end.connect(path)
            if peer_of(end).uid != uid:
                return None
            end.sendall(json.dumps(QUESTION).encode() + b"\n")
            line = _line(end)
        facts = msgspec.json.decode(json.loads(line)["done"], type=ProgressFacts)
    except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError, RecursionError):
        return None
    return facts if _can_be(facts) else None


def _line(end: socket.socket) -> bytes:
    """What comes until a line ends, all of it in time.

    Raises:
        OSError: It does not.
    """
    deadline = time.monotonic() + SECONDS
    content = b""
    while not content.endswith(b"\n") and len(content) < MAX_ANSWER_BYTES:
        end.settimeout(max(1e-3, deadline - time.monotonic()))
        part = end.recv(MAX_ANSWER_BYTES)
        if not part or time.monotonic() > deadline:
            raise TimeoutError
        content += part
    return content


def _can_be(facts: ProgressFacts) -> bool:
    """Whether a training may have told this; its user can have anything said."""
    left = facts.samples_left
    amounts = (facts.samples_done, 0.0 if left is None else left, facts.global_batch_size)
    are_rates = all(LEAST_RATE <= rate <= MOST for rate in facts.rates.values())
    are_numbers = all(0 <= each <= MOST for each in amounts) and are_rates
    said = [each.words for each in facts.failing.values()]  # these words are logged
    are_words = all(map(str.isprintable, said))
    are_short = all(len(each) <= MAX_CHARACTERS for each in (facts.model, *said))
    return are_numbers and are_words and are_short and _can_reduce(facts)


def _can_reduce(facts: ProgressFacts) -> bool:
    told = facts.reductions
    if told is None:
        return True
    are_amounts = 1 <= told.num_samples <= MOST and 1 <= told.num_bytes <= MOST
    are_times = all(LEAST_RATE <= each <= MOST for each in (told.seconds, told.busy_seconds))
    is_part = 0 <= told.exposed_seconds <= told.seconds
    return are_amounts and are_times and is_part and 0 < len(told.nodes) < len(RING)
