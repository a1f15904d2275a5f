"""What trials have measured of placements, kept from job to job beside curves.json."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hetero_hvd.messages import (
    NO_JSON,
    TrialReported,
    WorkerId,
    WorkersJoined,
    event_from_json,
    event_to_json,
)
from hetero_hvd.run.records.run_files import CHANGE_SECONDS, change_file, regular

logger = logging.getLogger(__name__)

NAME = "placements.json"
MAX_TRIALS = 100
"""Of all models together; the oldest go."""

MOST_SAMPLES_PER_SECOND = 1e18


class _TrialRecord(msgspec.Struct, forbid_unknown_fields=True):
    run: str
    trial: msgspec.Raw
    script: str = ""
    at_unix_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class KeptTrial:
    """A trial of a model.

    Attributes:
        run: Name of its folder.
        trial: What was found; a part of it was measured.
        script: That was trained, by its whole path; or its module. Empty: not told.
        at_unix_seconds: When it was over; NaN: not told.
    """

    run: str
    trial: TrialReported
    script: str = ""
    at_unix_seconds: float = math.nan

    @property
    def devices(self) -> dict[str, str]:
        """Worker to what it computes on, and how that is emulated."""
        return _devices(self.trial.workers, self.trial.devices)

    def is_like(self, other: KeptTrial) -> bool:
        """Whether both are of the same workers, devices, model and batch."""
        return _what(self.trial) == _what(other.trial) and self.devices == other.devices

    def is_of(self, joined: WorkersJoined) -> bool:
        """Whether these were measured together, on these devices, with this model and batch."""
        nodes = {worker.node for worker in joined.workers}
        return (
            _what(self.trial) == _what(joined)
            and _devices(joined.workers, joined.devices).items() <= self.devices.items()
            and any(set(each.nodes) == nodes for each in self.trial.placements if each.rounds)
        )


def keep_trial(
    folder: Path,
    report: TrialReported,
    *,
    script: str = "",
    at_unix_seconds: float = math.nan,
    wait_seconds: float = CHANGE_SECONDS,
) -> bool:
    """Add what was measured, in place of what an earlier trial of the same has.

    Args:
        folder: Of the run.
        report: Without a measurement nothing is kept.
        script: See `KeptTrial`.
        at_unix_seconds: See `KeptTrial`.
        wait_seconds: So long another job that is changing the file is waited for.

    Returns:
        Whether that is done with, and be it in vain; False: another job is changing the file.
    """
    if not any(each.rounds for each in report.placements):
        return True
    path = folder.absolute().parent / NAME
    new = KeptTrial(run=folder.name, trial=report, script=script, at_unix_seconds=at_unix_seconds)

    def added(content: bytes) -> bytes:
        others = (each for each in _kept(path, content) if not each.is_like(new))
        kept = [*others, new][-MAX_TRIALS:]
        return msgspec.json.format(msgspec.json.encode(list(map(_line, kept)))) + b"\n"

    try:
        change_file(path, added, wait_seconds=wait_seconds)
    except BlockingIOError as error:
        if wait_seconds:
            logger.warning("%s is left as it is: %s", path, error)
        return False
    except OSError as error:
        logger.warning("%s is left as it is: %s", path, error)
    return True


def kept_trial(folder: Path, joined: WorkersJoined) -> KeptTrial | None:
    """The newest trial of these workers with this model, beside a run's folder; None: none is."""
    path = folder.absolute().parent / NAME
    try:
        kept = kept_trials(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s is ignored: %s", path, error)
        return None
    return next((each for each in reversed(kept) if each.is_of(joined)), None)


def kept_trials(path: Path) -> list[KeptTrial]:
    """All trials of such a file, the newest at the end; what is damaged is passed over.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb", opener=regular) as file:
        return _kept(path, file.read())


def _kept(path: Path, content: bytes) -> list[KeptTrial]:
    try:
        lines = msgspec.json.decode(content or b"[]", type=list[msgspec.Raw])
    except NO_JSON as error:
        logger.warning("%s is ignored: %s", path, error)
        return []
    return list(_sound(path, lines))


def _sound(path: Path, lines: list[msgspec.Raw]) -> Iterator[KeptTrial]:
    """Those that are trials; another version, or a person, may have written the others."""
    for number, content in enumerate(lines, 1):
        try:
            line = msgspec.json.decode(content, type=_TrialRecord)
            trial = event_from_json(bytes(line.trial))
        except NO_JSON as error:
            logger.warning("%s: trial %d is ignored: %s", path, number, error)
            continue
        if isinstance(trial, TrialReported) and _is_sound(trial):
            at = math.nan if line.at_unix_seconds is None else line.at_unix_seconds
            yield KeptTrial(run=line.run, trial=trial, script=line.script, at_unix_seconds=at)
        else:
            logger.warning("%s: the trial of %s is ignored: it is none", path, line.run)


def _line(kept: KeptTrial) -> _TrialRecord:
    at = kept.at_unix_seconds
    return _TrialRecord(
        run=kept.run,
        trial=msgspec.Raw(event_to_json(kept.trial)),
        script=kept.script,
        at_unix_seconds=None if math.isnan(at) else at,
    )


def _is_sound(trial: TrialReported) -> bool:
    """Whether its parts belong together, and its figures can be figures."""
    return len(trial.devices) in {0, len(trial.workers)} and all(
        len(set(each.rounds)) == len(each.samples_per_second)
        and len(each.exchanges) in {0, len(each.rounds)}
        and all(each.exchanges)
        and all(
            0 < speed < MOST_SAMPLES_PER_SECOND
            for speeds in (each.samples_per_second, *each.exchanges)
            for speed in speeds
        )
        and not (each.cost_per_sample < 0 or each.joules_per_sample < 0)
        for each in trial.placements
    )


def _what(of: TrialReported | WorkersJoined) -> tuple[str, int]:
    return of.model, of.global_batch_size


def _devices(workers: tuple[WorkerId, ...], devices: tuple[str, ...]) -> dict[str, str]:
    told = devices or ("",) * len(workers)
    return {str(worker): device for worker, device in zip(workers, told, strict=True)}
