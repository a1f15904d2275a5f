"""Traces of queues as files: ours, Philly's job log, Alibaba's list of pods of 2023.

Ours is a CSV file, described in docs/reference/queue-trace.md. Philly's job log is JSON, as it was
published (github.com/msr-fiddle/philly-traces); Alibaba's is `openb_pod_list_*.csv`
(github.com/alibaba/clusterdata, cluster-trace-gpu-v2023). Of these two the work is what a job had:
devices x seconds, on a device of relative speed 1.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import PRIORITIES, JobRequest
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.core.simulation.queues.trace_job import TraceJob
from hetero_hvd.errors import JobError, UserError

RATE, COMMUNICATION = "rate:", "communication:"
ALIBABA = ("name", "num_gpu", "gpu_spec", "creation_time", "deletion_time", "scheduled_time")
_WORDS = {"yes": True, "no": False}


def read_trace(
    path: Path, devices: Sequence[QueueDevice], *, growth: float
) -> tuple[list[TraceJob], int]:
    """Read a trace; its first bytes and its header say which layout it has.

    Args:
        path: Of the file.
        devices: Of the cluster; a job that none of them can run is refused.
        growth: A job of another's trace may grow to so many times what it asked for.

    Returns:
        The jobs in the order of their submission, and how many others were left out: of another's
        trace those that never ran, and those without a GPU.

    Raises:
        UserError: The file cannot be read; or what stands in a line, by line, column and what is
            allowed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise JobError(
            f"{path}: {reason}; give a trace, see docs/reference/queue-trace.md"
        ) from None
    speeds = {each.kind: each.relative_speed for each in devices}
    if text.lstrip()[:1] == "[":
        found = list(_philly(path, text, speeds, growth))
    else:
        found = list(_rows(path, text, speeds, growth))
    jobs = [(where, job) for where, job in found if job is not None]
    if not jobs:
        raise JobError(f"{path}: holds no job that used a device")
    seen: dict[str, str] = {}
    for where, job in jobs:
        _check(where, job, devices, seen)
    in_order = sorted((job for _, job in jobs), key=lambda job: job.submit_seconds)
    return in_order, len(found) - len(jobs)


def _check(where: str, job: TraceJob, devices: Sequence[QueueDevice], seen: dict[str, str]) -> None:
    """Refuse a job that is there twice, or that the cluster can never run."""
    name, fewest = job.request.job, job.request.min_devices
    if name in seen:
        raise JobError(f"{where}, column job: {name!r} is there already: {seen[name]}")
    seen[name] = where
    able = sum(job.may_use(each) and each.pool == job.request.pool for each in devices)
    if able < fewest:
        raise JobError(
            f"{where}, job {name!r}: {able} devices of pool {job.request.pool!r} can run it, must "
            f"be at least {fewest}; see --devices, and the columns rate:KIND, needs and pool"
        )


class _Cells:
    """The cells of one line, by column.

    Args:
        where: The file and the line, for messages.
        cells: Column to text.
    """

    def __init__(self, where: str, cells: Mapping[str, str]) -> None:
        self._where = where
        self._cells = cells

    def refuse(self, column: str, allowed: str) -> JobError:
        """The error of a cell."""
        found = self._cells.get(column, "")
        return JobError(f"{self._where}, column {column}: found {found!r}, must be {allowed}")

    def text(self, column: str, default: str = "") -> str:
        """What stands there; the default if nothing does."""
        return self._cells.get(column, "").strip() or default

    def number(
        self,
        column: str,
        allowed: str,
        admits: Callable[[float], bool],
        default: float | None = None,
    ) -> float:
        """A finite number; without a default there must be one."""
        text = self.text(column)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.refuse(column, allowed) from None
        if not math.isfinite(value) or not admits(value):
            raise self.refuse(column, allowed)
        return value

    def count(self, column: str, default: int, *, minimum: int = 1) -> int:
        """A whole number."""
        allowed = f"a whole number of at least {minimum}"
        return int(
            self.number(column, allowed, lambda v: v == int(v) and v >= minimum, float(default))
        )

    def flag(self, column: str) -> bool:
        """Yes or no; nothing is yes."""
        word = self.text(column, "yes")
        if word not in _WORDS:
            raise self.refuse(column, "yes or no")
        return _WORDS[word]


def _rows(
    path: Path, text: str, speeds: Mapping[str, float], growth: float
) -> Iterator[tuple[str, TraceJob | None]]:
    """Jobs of a CSV file, ours or Alibaba's."""
    lines = csv.reader(io.StringIO(text), strict=True)
    header: list[str] | None = None
    is_alibaba = False
    try:
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                is_alibaba = set(ALIBABA) <= set(header)
                if not is_alibaba:
                    _check_header(path, header)
                continue
            where = f"{path} line {lines.line_num}"
            if len(cells) != len(header):
                raise JobError(f"{where}: found {len(cells)} columns, must be {len(header)}")
            row = _Cells(where, dict(zip(header, cells, strict=True)))
            yield (
                where,
                _alibaba_job(row, speeds, growth) if is_alibaba else _own_job(row, header, speeds),
            )
    except csv.Error as error:
        raise JobError(f"{path} line {lines.line_num}: {error}; must be CSV") from None
    if header is None:
        raise JobError(f"{path}: is empty; see docs/reference/queue-trace.md")


REQUIRED = ("job", "submit_seconds", "work")
OPTIONAL = (
    "user", "devices", "min_devices", "max_devices", "priority", "pool", "needs", "shrinkable",
    "known", "time_limit_seconds",
)  # fmt: skip


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if not any(name.startswith(RATE) for name in header):
        missing.append("rate:KIND")
    twice = [name for number, name in enumerate(header) if name in header[:number]]
    unknown = [
        name
        for name in header
        if name not in (*REQUIRED, *OPTIONAL) and not name.startswith((RATE, COMMUNICATION))
    ]
    for names, words in ((missing, "is missing"), (twice, "is there twice")):
        if names:
            raise JobError(f"{path} line 1: column {names[0]} {words}")
    if unknown:
        allowed = ", ".join((*REQUIRED, *OPTIONAL, "rate:KIND", "communication:KIND"))
        raise JobError(f"{path} line 1: column {unknown[0]!r} must be of {allowed}")


def _own_job(row: _Cells, header: Sequence[str], speeds: Mapping[str, float]) -> TraceJob:
    """A job of our own layout."""
    name = row.text("job")
    if not name:
        raise row.refuse("job", "a name")
    rates = dict.fromkeys(speeds, 0.0)
    costs: dict[str, float] = {}
    for column in header:
        kind = column.partition(":")[2]
        if column.startswith((RATE, COMMUNICATION)):
            value = row.number(column, "a number of at least 0", lambda v: v >= 0, 0.0)
            (rates if column.startswith(RATE) else costs)[kind] = value
    fewest = row.count("min_devices", 1)
    asked = row.count("devices", fewest)
    priority = row.text("priority", "normal")
    if priority not in PRIORITIES:
        raise row.refuse("priority", f"of {', '.join(PRIORITIES)}")
    try:
        request = JobRequest(
            job=name,
            user=row.text("user", "nobody"),
            pool=row.text("pool", "default"),
            priority=priority,
            min_devices=fewest,
            max_devices=row.count("max_devices", max(asked, fewest), minimum=fewest),
            needs=_needs(row),
            is_shrinkable=row.flag("shrinkable"),
            work=row.number("work", "a number above 0", lambda v: v > 0),
            rates=rates,
            communication_seconds=costs,
            time_limit_seconds=row.number(
                "time_limit_seconds", "a number above 0", lambda v: v > 0, math.inf
            ),
        )
    except JobError:
        raise
    except UserError as error:
        raise row.refuse("time_limit_seconds", f"such that it can run: {error}") from None
    at = row.number("submit_seconds", "a number of at least 0", lambda v: v >= 0)
    return TraceJob(
        request=request, submit_seconds=at, num_devices=asked, is_work_told=row.flag("known")
    )


def _needs(row: _Cells) -> tuple[DeviceNeed, ...]:
    try:
        return tuple(map(DeviceNeed.parse, filter(None, row.text("needs").split(";"))))
    except UserError:
        raise row.refuse("needs", "conditions such as memory>=16GiB, ; between them") from None


def _alibaba_job(row: _Cells, speeds: Mapping[str, float], growth: float) -> TraceJob | None:
    """A pod; None: it had no GPU, or never ran.

    A part of a GPU counts as one: the queue leases whole devices.
    """
    number = row.count("num_gpu", 0, minimum=0)
    if not number or not row.text("scheduled_time"):
        return None
    whole = "a number of seconds"
    begin, end, submitted = (
        row.number(name, whole, lambda v: v >= 0)
        for name in ("scheduled_time", "deletion_time", "creation_time")
    )
    if end <= begin:
        return None
    kinds = row.text("gpu_spec").split("|") if row.text("gpu_spec", "nan") != "nan" else speeds
    rates = {kind: speed * (kind in kinds) for kind, speed in speeds.items()}
    return _foreign(row.text("name"), "nobody", submitted, (number, end - begin, growth), rates)


class _PhillyPlace(msgspec.Struct):
    gpus: list[str]


class _PhillyAttempt(msgspec.Struct):
    start_time: str | None
    end_time: str | None
    detail: list[_PhillyPlace]


class _PhillyJob(msgspec.Struct):
    jobid: str
    user: str
    submitted_time: str
    attempts: list[_PhillyAttempt]


def _philly(
    path: Path, text: str, speeds: Mapping[str, float], growth: float
) -> Iterator[tuple[str, TraceJob | None]]:
    """Jobs of Philly's `cluster_job_log`; None: one that never ran, or whose end is not known."""
    try:
        jobs = msgspec.json.decode(text.encode(), type=list[_PhillyJob])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise JobError(f"{path}: {error}; must be Philly's cluster_job_log") from None
    for number, job in enumerate(jobs, start=1):
        where = f"{path} job {number}"
        had, last = 0.0, 0
        for attempt in job.attempts:
            if attempt.start_time and attempt.end_time:
                begin = _instant(where, "start_time", attempt.start_time)
                seconds = _instant(where, "end_time", attempt.end_time) - begin
                last = sum(len(place.gpus) for place in attempt.detail)
                had += max(0.0, seconds) * last
        submitted = _instant(where, "submitted_time", job.submitted_time)
        if had and last:
            work = (last, had / last, growth)
            yield where, _foreign(job.jobid, job.user, submitted, work, speeds)
        else:
            yield where, None


def _instant(where: str, column: str, text: str) -> float:
    try:
        at = datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise JobError(
            f"{where}, column {column}: found {text!r}, must be a time such as 2017-10-07 01:12:09"
        ) from None
    return at.timestamp()


def _foreign(
    name: str,
    user: str,
    submitted: float,
    had: tuple[int, float, float],
    rates: Mapping[str, float],
) -> TraceJob:
    """A job of which is known what it had: devices, seconds on them, and how far it may grow."""
    number, seconds, growth = had
    request = JobRequest(
        job=name,
        user=user,
        max_devices=max(number, int(number * growth)),
        work=number * seconds,
        rates=dict(rates),
    )
    return TraceJob(request=request, submit_seconds=submitted, num_devices=number)
