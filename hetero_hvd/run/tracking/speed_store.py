"""What was learnt about the workers, kept from job to job, so that the next one starts balanced."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hetero_hvd.config import NodeConfig
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.messages import NO_JSON, WorkerId, WorkersJoined
from hetero_hvd.run.records.run_files import CHANGE_SECONDS, change_file, regular

logger = logging.getLogger(__name__)

MAX_ENTRIES = 10_000
MAX_SLOTS = 64
"""Looked up on a node whose GPUs decide how many it has."""


class _KnownSpeeds(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    overhead_seconds: float
    seconds_per_sample: float
    largest_share: int
    smallest_share: int = 0


class CurveStore:
    """A small JSON file; a curve belongs to a worker, its device and the model that it trains.

    The device is what the worker says it is, and how nodes.yaml emulates it. Whatever cannot be
    read is forgotten; at worst a job starts with even shares.

    Args:
        path: The file; its folder exists.
        nodes: As in nodes.yaml.
    """

    def __init__(self, path: Path, nodes: Sequence[NodeConfig]) -> None:
        self._path = path
        self._emulated = {node.name: repr(node.emulate) for node in nodes}
        self._devices: dict[WorkerId, str] = {}
        self._model = ""

    def load(self, event: WorkersJoined) -> dict[WorkerId, SpeedProfile]:
        """What is remembered of these workers, on these devices and for this model."""
        self._devices.update(zip(event.workers, event.devices, strict=False))
        self._model = event.model
        entries = self._entries(self._content())
        curves = {}
        micro_batch_sizes = event.micro_batch_sizes or (0,) * len(event.workers)
        for worker, micro_batch_size in zip(event.workers, micro_batch_sizes, strict=True):
            entry = entries.get(self._key(worker))
            if entry is not None and _is_sane(entry):
                model = StepTimeModel(
                    overhead_seconds=entry.overhead_seconds,
                    seconds_per_sample=entry.seconds_per_sample,
                    micro_batch_size=micro_batch_size,
                )
                curves[worker] = SpeedProfile(
                    model=model,
                    largest_share=entry.largest_share,
                    smallest_share=entry.smallest_share,
                )
        return curves

    def remember(self, worker: WorkerId, curve: SpeedProfile, *, device: str, model: str) -> None:
        """Add what was measured outside a job.

        Args:
            worker: Whose curve.
            curve: What to remember.
            device: As the worker describes it.
            model: As the worker describes it.
        """
        self._devices[worker], self._model = device, model
        self.save({worker: curve})

    def save(
        self, curves: Mapping[WorkerId, SpeedProfile], *, wait_seconds: float = CHANGE_SECONDS
    ) -> None:
        """Add these, atomically; the oldest go when there are too many.

        Args:
            curves: What to remember.
            wait_seconds: So long another job that is changing the file is waited for; 0: it is
                left for the next time, without a word.
        """
        if not curves:
            return

        def added(content: bytes) -> bytes:
            entries = self._entries(content)
            for worker, curve in curves.items():
                key = self._key(worker)
                entries.pop(key, None)
                entries[key] = _KnownSpeeds(
                    overhead_seconds=curve.model.overhead_seconds,
                    seconds_per_sample=curve.model.seconds_per_sample,
                    largest_share=curve.largest_share,
                    smallest_share=curve.smallest_share,
                )
            kept = dict(list(entries.items())[-MAX_ENTRIES:])
            return msgspec.json.format(msgspec.json.encode(kept)) + b"\n"

        try:
            change_file(self._path, added, wait_seconds=wait_seconds)
        except OSError as error:
            if wait_seconds or not isinstance(error, BlockingIOError):
                logger.warning("%s cannot be written: %s", self._path, error)

    def _key(self, worker: WorkerId) -> str:
        emulated, device = self._emulated.get(worker.node, ""), self._devices.get(worker, "")
        return f"{worker} | {device} | {emulated} | {self._model}"

    def _content(self) -> bytes:
        try:
            with open(self._path, "rb", opener=regular) as file:
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            logger.warning("%s is ignored: %s", self._path, error)
            return b""

    def _entries(self, content: bytes) -> dict[str, _KnownSpeeds]:
        try:
            return msgspec.json.decode(content or b"{}", type=dict[str, _KnownSpeeds])
        except NO_JSON as error:
            logger.warning("%s is ignored: %s", self._path, error)
            return {}


def _is_sane(entry: _KnownSpeeds) -> bool:
    return (
        0 <= entry.overhead_seconds < math.inf
        and 0 < entry.seconds_per_sample < math.inf
        and 0 <= entry.smallest_share <= entry.largest_share > 0
    )


def carry_over(before: Path | None, output: Path) -> None:
    """What the earlier run had learnt about the workers is of use here too."""
    target = output.parent / "curves.json"
    if before is not None and not target.exists() and (before.parent / "curves.json").exists():
        try:
            shutil.copyfile(before.parent / "curves.json", target)
        except OSError as error:
            logger.warning("%s cannot be written: %s", target, error)
