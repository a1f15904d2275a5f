"""The settings of the job, each declared once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hetero_hvd.config.declare import about, check, settings_of
from hetero_hvd.config.kinds import HOST, PATH, boolean, choice, integer, number


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """How the job runs; each also an environment variable and a flag."""

    min_np: int = field(
        default=1, metadata=about(integer(1), "wait, or pause, until there are so many workers")
    )
    max_np: int | None = field(
        default=None, metadata=about(integer(1), "use at most so many workers", default_text="all")
    )
    balance: bool = field(
        default=True, metadata=about(boolean(), "give each worker the share that it can carry")
    )
    rule: str = field(
        default="model",
        metadata=about(
            choice("model", "static", "lbb", "omnilearn"),
            "how shares follow from timings; `static` keeps to the nodes' relative_speed, the last "
            "two are published rules to compare with",
        ),
    )
    baseline_steps: int = field(
        default=0,
        metadata=about(
            integer(0), "first steps with uniform shares, so that the summary can compare"
        ),
    )
    output: str | None = field(
        default=None,
        metadata=about(
            PATH, "folder for logs and summary.json", default_text="runs/ and the start time in UTC"
        ),
    )
    start_timeout_seconds: float = field(
        default=60.0,
        metadata=about(
            number(above=0), "from a worker's start to ready; importing torch may take half of it"
        ),
    )
    heartbeat_timeout_seconds: float = field(
        default=10.0,
        metadata=about(number(above=0), "silence after which a worker is killed and replaced"),
    )
    gloo_timeout_seconds: int = field(
        default=30,
        metadata=about(integer(1, 86400), "longest wait inside one collective before it fails"),
    )
    elastic_timeout_seconds: float = field(
        default=600.0,
        metadata=about(number(above=0), "wait for min_np workers before giving up; Horovod's own"),
    )
    max_restarts: int = field(
        default=3, metadata=about(integer(0), "restarts of one slot before it is given up")
    )
    driver_address: str | None = field(
        default=None,
        metadata=about(
            HOST, "where the workers reach the driver", default_text="chosen for each node"
        ),
    )
    progress_seconds: float = field(
        default=2.0, metadata=about(number(above=0), "between two progress lines")
    )
    min_gain_ratio: float = field(
        default=0.02,
        metadata=about(
            number(minimum=0, maximum=1),
            "smallest predicted gain in step time worth a new plan; below it is noise",
        ),
    )

    def __post_init__(self) -> None:
        """Check."""
        check(self, self._relations())

    def _relations(self) -> Iterator[tuple[str, str]]:
        if self.max_np is not None and self.max_np < self.min_np:
            yield "max_np", f"found {self.max_np}, must be at least min_np, which is {self.min_np}"


JOB_SETTINGS = tuple(settings_of(JobConfig))
"""The settings that are also environment variables and flags."""
