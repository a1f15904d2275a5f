"""What a user's own trials have measured of a script, for the job that is submitted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from hetero_hvd.core.queue.measured.model_book import MAX_TRIALS, PATIENCE_SECONDS
from hetero_hvd.discovery.submission.pinned_script import place_of_script
from hetero_hvd.discovery.submission.queue_link import SubmittedTrial
from hetero_hvd.errors import UserError
from hetero_hvd.messages import PlacementTried
from hetero_hvd.run.records.placements import NAME, KeptTrial, kept_trials

USUAL = Path("runs") / NAME
"""Where `hetero-hvd trial` keeps them, if nothing else is said."""

DAY_SECONDS = 86400.0
SKEW_SECONDS = 3600.0
"""Clocks of two machines may differ by less. A trial that is farther ahead was made by a wrong one,
and would be the newest for as long."""


def trials_of(
    command: Sequence[str], given: str | None, now_unix_seconds: float | None = None
) -> tuple[list[SubmittedTrial], list[str]]:
    """Trials of a script, and a line for each that does not count.

    Args:
        command: Of the job.
        given: File of the trials, or the folder that it is in; None: the usual one, if it is there.
        now_unix_seconds: None: as it is.

    Raises:
        UserError: The file that was given cannot be read, or has no trial of the script.
    """
    now = time.time() if now_unix_seconds is None else now_unix_seconds
    path = USUAL if given is None else Path(given)
    try:
        path = path / NAME if path.is_dir() else path
        kept = kept_trials(path)
    except OSError as error:
        if given is None and isinstance(error, FileNotFoundError):
            return [], []
        words = f"{path}: {error.strerror}"
        if given is not None:
            raise UserError(f"--trials: {words}") from error
        return [], [f"{words}: no trial counts"]
    script = place_of_script(command, Path.cwd())
    mine = [each for each in kept if each.script == script]
    if given is not None and not mine:
        raise UserError(
            f"--trials: {path} has no trial of {script}: `hetero-hvd trial -- {script}` makes one"
        )
    found, lines = [], []
    for each in mine[-MAX_TRIALS:]:
        age_seconds = now - each.at_unix_seconds
        if not -SKEW_SECONDS < age_seconds < PATIENCE_SECONDS:
            lines.append(f"the trial of {each.run} is {_age(age_seconds)}: it does not count")
            continue
        try:
            found.append(_submitted(each, max(0.0, age_seconds)))
        except msgspec.ValidationError as error:
            lines.append(f"the trial of {each.run} does not count: {error}")
    return found, lines


def _age(seconds: float) -> str:
    if math.isnan(seconds):
        return "of a time that is not told"
    if seconds < 0:
        return "of a time that is still to come, by this machine's clock"
    return f"{seconds / DAY_SECONDS:.0f} d old"


def _submitted(kept: KeptTrial, age_seconds: float) -> SubmittedTrial:
    """As the queue takes it.

    Raises:
        msgspec.ValidationError: It does not, since somebody has edited the file.
    """
    wanted = {
        "run": kept.run,
        "age_seconds": age_seconds,
        "model": kept.trial.model,
        "global_batch_size": kept.trial.global_batch_size,
        "devices": kept.devices,
        "placements": list(_placements(kept.trial.placements)),
    }
    return msgspec.convert(wanted, SubmittedTrial)


def _placements(tried: Sequence[PlacementTried]) -> Iterator[dict[str, object]]:
    """What was not measured is taken to do what it was predicted to, and is never the best."""
    speeds = {each.nodes: median(each.samples_per_second) for each in tried if each.rounds}
    best = max(speeds.values(), default=math.inf)
    for each in tried:
        low, high = each.predicted_low, each.predicted_high
        if not each.rounds and not 0 < low <= high < math.inf:
            continue
        speed = speeds.get(each.nodes, min(best, math.sqrt(low * high)))
        is_measured = bool(each.rounds)
        yield {"nodes": each.nodes, "samples_per_second": speed, "is_measured": is_measured}
