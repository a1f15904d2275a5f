"""What a job that is submitted may say of how it runs."""

from __future__ import annotations

from hetero_hvd.config import JOB_SETTINGS
from hetero_hvd.config.job import OF_THE_QUEUE
from hetero_hvd.config.value_types import Scalar
from hetero_hvd.errors import UserError

SETTINGS = {each.name: each for each in JOB_SETTINGS if each.name not in OF_THE_QUEUE}
"""Where and on which nodes it runs says the queue."""


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
