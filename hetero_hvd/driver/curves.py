"""What was learnt about the workers, kept from job to job, so that the next one starts balanced."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hetero_hvd.config import NodeConfig
from hetero_hvd.core.known import Curve
from hetero_hvd.core.step_time import StepTimeModel
from hetero_hvd.messages import WorkerId

logger = logging.getLogger(__name__)

MAX_ENTRIES = 10_000
MAX_SLOTS = 64
"""Looked up on a node whose GPUs decide how many it has."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    overhead_seconds: float
    seconds_per_sample: float
    largest_share: int


class CurveStore:
    """A small JSON file; a curve belongs to a worker, its node's device settings and a command.

    The command stands for the model and its precision: another script or other arguments are
    another training. Whatever cannot be read is forgotten; at worst a job starts with even shares.

    Args:
        path: The file; its folder exists.
        nodes: As in nodes.yaml.
        command: The user's command.
    """

    def __init__(self, path: Path, nodes: Sequence[NodeConfig], command: Sequence[str]) -> None:
        self._path = path
        self._command = " ".join(command)
        self._workers = [
            WorkerId(node.name, slot)
            for node in nodes
            for slot in range(node.declared_slots or MAX_SLOTS)
        ]
        self._devices = {node.name: repr((node.devices, node.emulate)) for node in nodes}

    def load(self) -> dict[WorkerId, Curve]:
        """What is remembered of the nodes' workers."""
        entries = self._entries()
        curves = {}
        for worker in self._workers:
            entry = entries.get(self._key(worker))
            if entry is not None and _is_sane(entry):
                model = StepTimeModel(
                    overhead_seconds=entry.overhead_seconds,
                    seconds_per_sample=entry.seconds_per_sample,
                )
                curves[worker] = Curve(model=model, largest_share=entry.largest_share)
        return curves

    def save(self, curves: Mapping[WorkerId, Curve]) -> None:
        """Add these, atomically; the oldest go when there are too many."""
        if not curves:
            return
        entries = self._entries()
        for worker, curve in curves.items():
            key = self._key(worker)
            entries.pop(key, None)
            entries[key] = _Entry(
                overhead_seconds=curve.model.overhead_seconds,
                seconds_per_sample=curve.model.seconds_per_sample,
                largest_share=curve.largest_share,
            )
        kept = dict(list(entries.items())[-MAX_ENTRIES:])
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
            fresh.replace(self._path)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error)

    def _key(self, worker: WorkerId) -> str:
        return f"{worker} {self._devices.get(worker.node, '')} {self._command}"

    def _entries(self) -> dict[str, _Entry]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Entry])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s is ignored: %s", self._path, error)
            return {}


def _is_sane(entry: _Entry) -> bool:
    return (
        0 <= entry.overhead_seconds < math.inf
        and 0 < entry.seconds_per_sample < math.inf
        and entry.largest_share > 0
    )
