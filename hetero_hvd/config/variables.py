"""The environment variables that begin with HETERO_HVD_: which there are, and how one is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_hvd.config.job import JOB_SETTINGS
from hetero_hvd.config.setting import (
    ENVIRONMENT_PREFIX,
    Setting,
    displayed,
    setting,
    settings_of,
)
from hetero_hvd.config.value_types import PATH, Scalar, integer
from hetero_hvd.errors import ConfigError
from hetero_hvd.messages.launch import (
    KEY_VARIABLE,
    LAUNCH_VARIABLE,
    SWITCHES,
    TLS_VARIABLE,
    WORKER_VARIABLE,
    JobSettings,
    WorkerLaunch,
)


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


SCRIPT_SETTINGS = tuple(settings_of(ScriptConfig))

_FOR_ALL = {*JobSettings.__struct_fields__, *SWITCHES, "balance"} - {
    "hang_timeout_seconds"
}  # of a driver

ALONE_SETTINGS = (*(s for s in JOB_SETTINGS if s.name in _FOR_ALL), *SCRIPT_SETTINGS)
"""What counts for a script that runs without our driver: under `horovodrun`, or alone."""

SET_FOR_WORKERS = {
    LAUNCH_VARIABLE: "what the worker is told at its start, as JSON: `messages/launch.py`",
    WORKER_VARIABLE: "the worker's name, for example `alpha:0`: for the script's own use",
    KEY_VARIABLE: "the job's key; removed from the environment when it is read",
    TLS_VARIABLE: "the worker's certificate; removed from the environment when it is read",
}
"""What our driver sets in the environment of each worker."""

KNOWN = (*(setting.variable for setting in (*JOB_SETTINGS, *SCRIPT_SETTINGS)), *SET_FOR_WORKERS)
"""Every variable that there is."""


def given(settings: Iterable[Setting], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values of those settings that have a variable, by name; an empty one is not given.

    Raises:
        ConfigError: With all values that are not allowed.
    """
    values, problems = {}, []
    for known in settings:
        kind = known.kind
        assert isinstance(kind, Scalar)  # noqa: S101 - as is every setting with a variable
        if text := environment.get(known.variable):
            try:
                values[known.name] = kind.read(text)
            except (ValueError, OverflowError):
                wrong = f"found {displayed(text)}, must be {kind.allowed}"
                problems.append(f"environment: {known.variable}: {wrong}")
    if problems:
        raise ConfigError(problems)
    return values


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
        script_config(environment)
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
            label = name if name.isprintable() else displayed(name)  # a problem is one line
            yield f"environment: {label}: there is no such variable; {advice}"
