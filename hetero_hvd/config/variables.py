"""The environment variables that begin with HETERO_HVD_: which there are, and how one is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero_hvd.config.job import JOB_SETTINGS
from hetero_hvd.config.setting import (
    ENVIRONMENT_PREFIX,
    REMOVED,
    Setting,
    displayed,
    setting,
    settings_of,
)
from hetero_hvd.config.value_types import PATH, TAGS, TITLE, Kind, ListOf, Scalar, boolean, integer
from hetero_hvd.core.redaction import redacted
from hetero_hvd.errors import ConfigError
from hetero_hvd.messages.launch import (
    LAUNCH_VARIABLE,
    SWITCHES,
    TLS_VARIABLE,
    WORKER_VARIABLE,
    JobSettings,
    WorkerLaunch,
)
from hetero_hvd.probes.kernel.device_lease import FOLDER_VARIABLE as LEASES_FOLDER_VARIABLE
from hetero_hvd.probes.kernel.life_lock import LIFE_LOCK_VARIABLE
from hetero_hvd.probes.sampling.shared_folder import FOLDER_VARIABLE


@dataclass(frozen=True, kw_only=True)
class ScriptConfig:
    """What a worker does that is no setting of a job; by the names of `WorkerLaunch`."""

    check_steps: int = setting(
        integer(0),
        "steps between two comparisons of all replicas, which are also compared at the head of "
        "epochs 1, 2, 4, ...; 0 = never; `hetero-hvd run` gives it to all workers",
        default=WorkerLaunch().check_steps,
    )
    fingerprints: str | None = setting(
        PATH,
        "file to which rank 0 appends fingerprints in the reproducible mode; under "
        "`hetero-hvd run` it is in the output folder",
        default=None,
        default_text="none",
    )


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """What a script that runs without our driver leaves of its run, beside the job's settings."""

    record: bool = setting(boolean(), "whether the run leaves a folder at all", default=True)
    name: str = setting(
        TITLE, "what to call the run, as `--name`", default="", default_text="nothing"
    )
    tags: tuple[str, ...] = setting(
        TAGS, "what the run tries, as `--tag`: `lr=0.1 opt=adam`", default=(), default_text="none"
    )


SCRIPT_SETTINGS = tuple(settings_of(ScriptConfig))
RECORD_SETTINGS = tuple(settings_of(RecordConfig))

_FOR_ALL = {*JobSettings.__struct_fields__, *SWITCHES} - {"hang_timeout_seconds"}  # of a driver
OF_LEADER = {
    "balance",
    "rule",
    "baseline_steps",
    "calibrate",
    "min_gain_ratio",
    "remember",
    "output",
    "http_address",
    "http_port",
    "http_token_file",
    "http_certificate",
    "http_key",
    "http_client_ca",
    "export",
    "sample_seconds",
}
"""Settings of a job by which rank 0 leads and records a run without our driver."""


def _alone(job_setting: Setting) -> Setting:
    """What a job's setting may hold where no nodes.yaml has the balancer's other ones."""
    if job_setting.name != "balance":
        return job_setting
    allowed = f"{job_setting.kind.allowed}, or the balancer's settings as JSON in braces"
    return replace(job_setting, kind=replace(job_setting.kind, allowed=allowed))


ALONE_SETTINGS = (
    *(_alone(s) for s in JOB_SETTINGS if s.name in _FOR_ALL | OF_LEADER),
    *SCRIPT_SETTINGS,
    *RECORD_SETTINGS,
)
"""What counts for a script that runs without our driver: under `horovodrun`, or alone."""

ARRAY_VARIABLE = f"{ENVIRONMENT_PREFIX}ARRAY_INDEX"

SET_FOR_WORKERS = {
    LAUNCH_VARIABLE: "what the worker is told at its start, as JSON: `messages/launch.py`",
    WORKER_VARIABLE: "the worker's name, for example `alpha:0`: for the script's own use",
    TLS_VARIABLE: "the worker's key and certificate; removed from the environment when it is read",
    LIFE_LOCK_VARIABLE: "descriptor of a lock by which the end of the worker is noticed at once",
}
"""What our driver sets in the environment of each worker."""

ON_NODES = {
    FOLDER_VARIABLE: "private folder in which the programs of a user on one node share what is "
    "sampled of it (default: one in /dev/shm)",
    LEASES_FOLDER_VARIABLE: "folder in which all users' programs on a node lock the devices that "
    "they use (default: one in /run/lock); for tests",
    ARRAY_VARIABLE: "index of a job in its array, set by the queue; see docs/guide/queue.md",
    f"{ENVIRONMENT_PREFIX}QUEUE": "socket of the queue that jobs are submitted to (default: "
    "/run/hetero_hvd/queue.sock, else hub/queue.sock)",
}
"""What counts for every program on a node."""

SET_FOR_GUARD_COMMAND = {
    f"{ENVIRONMENT_PREFIX}GUARD_{field.upper()}": (field, meaning)
    for field, meaning in {
        "run_id": "the run",
        "what": "`drained`, `refused` or `alerted`",
        "reason": "`temperature`, `throttled`, `xid` or `ecc`",
        "node": "the node",
        "device": "such as `GPU 0`, or `processors`",
        "uuid": "of a GPU",
        "workers": "whom it concerns, with blanks between",
        "words": "all of it in one line",
        "drained_devices": "how many are drained now",
        "refused_devices": "how many should be and must not",
    }.items()
}
"""What the guard's command finds in its environment, by the field of the notice."""

KNOWN = (
    *(setting.variable for setting in (*JOB_SETTINGS, *SCRIPT_SETTINGS, *RECORD_SETTINGS)),
    *SET_FOR_WORKERS,
    *ON_NODES,
    *SET_FOR_GUARD_COMMAND,
)
"""Every variable that there is."""


def given(settings: Iterable[Setting], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values of those settings that have a variable, by name; an empty one is not given.

    Raises:
        ConfigError: With all values that are not allowed.
    """
    values, problems = {}, []
    for known in settings:
        if text := environment.get(known.variable):
            try:
                values[known.name] = _read(known.kind, text)
            except (ValueError, OverflowError):
                wrong = f"found {displayed(redacted(text))}, must be {known.kind.allowed}"
                problems.append(f"environment: {known.variable}: {wrong}")
    if problems:
        raise ConfigError(problems)
    return values


def _read(kind: Kind, text: str) -> Any:  # noqa: ANN401 - whatever the setting's type is
    if isinstance(kind, ListOf) and isinstance(kind.item, Scalar):
        return tuple(map(kind.item.read, text.split()))
    assert isinstance(kind, Scalar)  # noqa: S101 - every setting with a variable is such or a list
    return kind.read(text)


def script_config(environment: Mapping[str, str]) -> ScriptConfig:
    """What the variables say that are no settings of a job.

    Raises:
        ConfigError: With all values that are not allowed.
    """
    return ScriptConfig(**given(SCRIPT_SETTINGS, environment))


def problems(environment: Mapping[str, str]) -> list[str]:
    """What is wrong with the variables that are no settings of a job, a line for each."""
    found = list(unknown(environment))
    try:
        given((*SCRIPT_SETTINGS, *RECORD_SETTINGS), environment)
    except ConfigError as error:
        found += error.problems
    return found


def unknown(environment: Mapping[str, str]) -> Iterator[str]:
    """A problem for each variable that looks like ours, and is none."""
    endings = [name.removeprefix(ENVIRONMENT_PREFIX) for name in KNOWN]
    for name, text in environment.items():
        if text and name.startswith(ENVIRONMENT_PREFIX) and name not in KNOWN:
            ending = name.removeprefix(ENVIRONMENT_PREFIX).upper()
            near = difflib.get_close_matches(ending, endings, n=1)
            advice = f"did you mean {ENVIRONMENT_PREFIX}{near[0]}?" if near else "unset it"
            if reason := REMOVED.get(ending.lower()):
                advice = f"{reason}; unset it"
            label = name if name.isprintable() else displayed(name)  # a problem is one line
            yield f"environment: {label}: there is no such variable; {advice}"


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """For a command that stays and reads no settings: what is passed on has a slip in it.

    Raises:
        ConfigError: With all variables that look like ours, and are none.
    """
    if found := list(unknown(environment)):
        raise ConfigError(found)
