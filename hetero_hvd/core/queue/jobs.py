"""Jobs of the queue: what was asked for, and how far each has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from hetero_hvd.core.queue.measured.measured_trial import MeasuredTrial
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.errors import UserError

JobPriority = Literal["high", "normal", "low"]
PRIORITIES: tuple[JobPriority, ...] = get_args(JobPriority)
MAX_ARRAY = 1000
"""Elements of an array, and jobs that one order is about."""

JobPhase = Literal["waiting", "running", "ended"]
"""A job that has been shrunk to nothing waits again, with all that it has done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What was submitted, which never changes, but for `queue move`; and what was measured of it.

    Attributes:
        job: Its name, unique in the queue.
        user: Who submitted it.
        pool: Whose devices it uses first.
        priority: Higher ones are served first.
        min_devices: It runs on no fewer, >= 1.
        max_devices: It is given no more, >= `min_devices`.
        needs: What each device must fulfil.
        is_shrinkable: Whether its devices may change while it runs. A command that cannot shrink
            (a notebook, say) is started on `min_devices` and keeps them until it ends.
        work: All of it, in any unit (samples, steps); NaN: not known.
        rates: Kind of device to what one of them does alone, units of work per second; measured
            by this job.
        script: Tells a script of its user from others; empty: not known. What was measured of the
            model that it trained last is what a job begins with.
        model: Class and digest, as in `WorkersJoined`; as long as the job has not told it, that of
            the script's last job; empty: not known.
        model_rates: As `rates`, but measured by earlier jobs of the model. They may have had other
            inputs, so it is the ratios that count, see `expected_rates`.
        communication_seconds: Kind of device to what a unit of work costs more for each doubling
            of the number of devices; of links as slow as those of that kind. Missing: 0.
        bytes_per_unit: What a unit of work reduces between the devices, bytes; 0: not known. What
            that costs follows from the links that were measured.
        hidden_ratio: So much of its computation has reductions beside it, 0 to 1, as far as it
            has shown.
        trial: What a trial of the model has measured of sets of nodes; None: nothing that counts.
        trial_words: Why one that there is does not count, or what was wrong with it.
        time_limit_seconds: It is ended after so long with devices; inf: never.
        idle_limit_seconds: It is ended when its devices have done nothing for so long.
        deadline_seconds: When it should have ended, on the queue's clock; inf: none.
        after: Jobs that must have succeeded before it starts.
        array: Name of the array that it is an element of; empty: none.
        array_limit: So many elements of that array have devices at a time; 0: any number.
        retries: So many times it is started again after a failure that can heal, >= 0.
    """

    job: str
    user: str
    pool: str = "default"
    priority: JobPriority = "normal"
    min_devices: int = 1
    max_devices: int = 1
    needs: tuple[DeviceNeed, ...] = ()
    is_shrinkable: bool = True
    work: float = math.nan
    rates: Mapping[str, float] = field(default_factory=dict)
    script: str = ""
    model: str = ""
    model_rates: Mapping[str, float] = field(default_factory=dict)
    communication_seconds: Mapping[str, float] = field(default_factory=dict)
    bytes_per_unit: float = 0.0
    hidden_ratio: float = 0.0
    trial: MeasuredTrial | None = None
    trial_words: str = ""
    time_limit_seconds: float = math.inf
    idle_limit_seconds: float = math.inf
    deadline_seconds: float = math.inf
    after: tuple[str, ...] = ()
    array: str = ""
    array_limit: int = 0
    retries: int = 0

    def __post_init__(self) -> None:
        """Refuse what could never run.

        Raises:
            UserError: A number is out of its range, or a job waits for itself.
        """
        checks = {
            "min_devices must be at least 1": self.min_devices >= 1,
            "max_devices must be at least min_devices": self.max_devices >= self.min_devices,
            f"priority must be of {', '.join(PRIORITIES)}": self.priority in PRIORITIES,
            "work must be above 0": not self.work <= 0,
            "rates must be of at least 0": all(0 <= r < math.inf for r in self.rates.values()),
            "communication_seconds must be of at least 0": all(
                0 <= c < math.inf for c in self.communication_seconds.values()
            ),
            "bytes_per_unit must be of at least 0": 0 <= self.bytes_per_unit < math.inf,
            "hidden_ratio must be of 0 to 1": 0 <= self.hidden_ratio <= 1,
            "time_limit_seconds must be above 0": self.time_limit_seconds > 0,
            "idle_limit_seconds must be above 0": self.idle_limit_seconds > 0,
            "retries must be at least 0": self.retries >= 0,
            "array_limit must be at least 0": self.array_limit >= 0,
            "after must not name the job itself": self.job not in self.after,
            "what cannot shrink needs time_limit_seconds, after which its devices are free": (
                self.is_shrinkable or self.time_limit_seconds < math.inf
            ),
        }
        for words, holds in checks.items():
            if not holds:
                raise UserError(f"job {self.job}: {words}")

    @property
    def expected_rates(self) -> Mapping[str, float]:
        """Kind of device to its rate, of those that were measured by this job or for its model."""
        ratios = [
            self.rates[kind] / rate
            for kind, rate in self.model_rates.items()
            if rate > 0 and self.rates.get(kind, 0.0) > 0
        ]
        scale = sum(ratios) / len(ratios) if ratios else 1.0
        return {kind: rate * scale for kind, rate in self.model_rates.items()} | dict(self.rates)

    @property
    def most_devices(self) -> int:
        """What it may have: what cannot shrink has the fewest that it runs on."""
        return self.max_devices if self.is_shrinkable else self.min_devices


@dataclass(kw_only=True, slots=True)
class QueuedJob:
    """A job and how far it has come; only `QueueState` changes it.

    Attributes:
        request: What was submitted.
        number: Submitted as the so-maniest; decides between equals.
        submitted_at_seconds: On the queue's clock.
        phase: Whether it has devices now, or ever will.
        devices: Names of those that it has, sorted.
        waiting_since_seconds: Since when it has none, or would have been ready to have some.
        first_started_at_seconds: NaN: never started.
        served_since_seconds: Since when it has devices without a break.
        lease_seconds: So long it has had devices in this attempt.
        done_work: In the unit of the request, as it last told; kept when it is shrunk to nothing.
        attained_seconds: Normalised device-seconds that it has had.
        idle_seconds: For so long its devices have done nothing.
        num_failures: Of those that can heal.
        not_before_seconds: It is not started earlier: the back-off after a failure.
        keeps_until_seconds: Its fewest devices are not taken away earlier.
        is_held: It is not started until it is released.
        outcome: How it ended, in words; empty: it has not.
        has_succeeded: It ended well.
    """

    request: JobRequest
    number: int
    submitted_at_seconds: float
    phase: JobPhase = "waiting"
    devices: tuple[str, ...] = ()
    waiting_since_seconds: float = 0.0
    first_started_at_seconds: float = math.nan
    served_since_seconds: float = 0.0
    lease_seconds: float = 0.0
    done_work: float = 0.0
    attained_seconds: float = 0.0
    idle_seconds: float = 0.0
    num_failures: int = 0
    not_before_seconds: float = -math.inf
    keeps_until_seconds: float = -math.inf
    is_held: bool = False
    outcome: str = ""
    has_succeeded: bool = False

    @property
    def remaining_work(self) -> float:
        """In the unit of the request, >= 0; NaN: not known."""
        return max(0.0, self.request.work - self.done_work) + 0.0 * self.request.work
