"""What NCCL says in the workers' logs of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.core.nccl_log import MARK, NcclFacts, nccl_in_words, read_nccl
from hetero_hvd.core.redaction import redacted
from hetero_hvd.kept_file import older
from hetero_hvd.run.records.run_files import regular

DRIVER = "driver"
MAX_LINE_CHARACTERS = 10_000


def nccl_of(run: Path) -> dict[str, NcclFacts]:
    """By worker, `node:slot`; empty where `NCCL_DEBUG` was not set, or there are no logs."""
    found = {}
    for path in sorted((run / "logs").glob("*.log")):
        node, _, slot = path.stem.rpartition("-")
        facts = read_nccl(_lines(path)) if path.stem != DRIVER else None
        if facts is not None:
            found[f"{node}:{slot}"] = facts
    return found


def in_words(run: Path) -> Iterator[str]:
    """Lines for people."""
    for worker, facts in nccl_of(run).items():
        yield from map(redacted, nccl_in_words(worker, facts))


def _lines(path: Path) -> Iterator[str]:
    """Those of NCCL, as they were printed; of a log of JSON lines, the messages."""
    for part in (older(path), path):
        try:
            with open(part, errors="replace", opener=regular) as file:
                while line := file.readline(MAX_LINE_CHARACTERS):
                    if MARK in line:
                        yield _message(line)
        except OSError:  # there is none
            continue


def _message(line: str) -> str:
    if line.startswith("{"):
        try:
            return str(json.loads(line)["message"])
        except (ValueError, KeyError, TypeError):
            return line
    return line
