"""What a job that is submitted may say of how it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from hetero_hvd.config import JOB_SETTINGS
from hetero_hvd.config.job import OF_THE_QUEUE
from hetero_hvd.config.value_types import Scalar
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.errors import AllWrong, UserError

SETTINGS = {each.name: each for each in JOB_SETTINGS if each.name not in OF_THE_QUEUE}
"""Where and on which nodes it runs says the queue."""


class SubmittedShape(Protocol):
    """What of a job says how it runs; see `SubmittedJob`."""

    @property
    def min_devices(self) -> int:
        """It runs on no fewer."""

    @property
    def is_command(self) -> bool:
        """Whether it is any program."""

    @property
    def needs(self) -> Sequence[str]:
        """What each device must fulfil."""

    @property
    def idle_limit_seconds(self) -> float | None:
        """It is ended when its devices did nothing for so long."""

    @property
    def array(self) -> Sequence[int]:
        """Indices."""

    @property
    def array_limit(self) -> int:
        """So many of them run at a time."""


def check_together(job: SubmittedShape, settings: Collection[str]) -> None:
    """Refuse what says two things at once; says all that is so.

    Args:
        job: How it is to run.
        settings: Names of settings that were given.

    Raises:
        UserError: Something does, or a need is none.
    """
    wrong = AllWrong()
    needs: list[DeviceNeed] = []
    for text in job.needs:
        with wrong.part():
            needs.append(DeviceNeed.parse(text))
    one_node = len(needs) < len(job.needs) or any(need.what == "node" for need in needs)
    told = {
        "array: an index is there twice": len({*job.array}) < len(job.array),
        "array_limit: needs an array": bool(job.array_limit and not job.array),
        "idle_limit: is of commands (--devices): a training is not idle": (
            job.idle_limit_seconds is not None and not job.is_command
        ),
        "a command (--devices) has no settings of `hetero-hvd run`": (
            job.is_command and bool(settings)
        ),
        "a command on several devices needs them on one node: --needs node==NAME": (
            job.is_command and job.min_devices > 1 and not one_node
        ),
    }
    for words, holds in told.items():
        if holds:
            wrong.take(UserError(f"submit: {words}"))
    wrong.check()


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse what is no setting of a job of the queue, or no value of one; says all of it.

    Args:
        settings: Name to value, as a file has it.

    Raises:
        UserError: Something is.
    """
    wrong = AllWrong()
    for given in settings.items():
        with wrong.part():
            as_flag(given)
    wrong.check()


def as_flag(given: tuple[str, str]) -> str:
    """A setting and its text as a flag of `hetero-hvd run`.

    Raises:
        UserError: There is none of that name, or it cannot be that.
    """
    name, text = given
    if name in OF_THE_QUEUE:
        raise UserError(f"settings: {name!r} is decided by the queue")
    if name not in SETTINGS:
        raise UserError(f"settings: {name!r} is none that a job of the queue may have")
    flag, kind = SETTINGS[name].flag, SETTINGS[name].kind
    if isinstance(kind, Scalar):
        try:
            kind.read(text)
        except (ValueError, OverflowError) as error:
            raise UserError(f"settings: {name}: found {text!r}, must be {kind.allowed}") from error
    if isinstance(SETTINGS[name].default, bool):
        return flag if text == "true" else f"--no-{flag.removeprefix('--')}"
    return f"{flag}={text}"
