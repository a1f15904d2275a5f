"""What is advised, as annotations of the object that Kubernetes knows a run by."""

from __future__ import annotations

import time
from collections.abc import Callable

from hetero_hvd.cli.lines import show
from hetero_hvd.core.advice.advice import NOTHING, Advised
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.run.sinks.destinations.kubernetes_object import ObjectAnnotations, time_of_now

LOOK_SECONDS = 30.0
"""Between two looks at a run that goes on; nothing is told more often, either."""


class AnnotatedAdvice:
    """Tells an object what is advised, when that has changed.

    Args:
        url: See `ObjectAnnotations`.

    Raises:
        UserError: As there.
    """

    def __init__(self, url: str) -> None:
        self._object = ObjectAnnotations(url)
        self._told: dict[str, str] = {}

    def tell(self, said: Advised) -> str:
        """Set the annotations; nothing is asked where they are as they were told last.

        Returns:
            Why the object does not have them yet, and will if this is called again; empty: it has.

        Raises:
            JobError: It will never have them.
        """
        facts = {
            "advice": "; ".join(map(str, said.advice)) or NOTHING,
            "advice-ids": ",".join(each.id for each in said.advice if each.id),
        }
        if facts == self._told:
            return ""
        if time.monotonic() < self._object.next_at_seconds:
            return f"{self._object.name}: was told a moment ago"
        try:
            self._object.tell(facts | {"advice-updated": time_of_now()})
        except OSError as error:
            if not self._object.resumes:
                raise JobError(str(error)) from error
            return str(error)
        if self._object.is_busy:
            return f"{self._object.name}: the server is busy"
        self._told = facts
        return ""


def annotate(url: str, look: Callable[[], tuple[Advised, bool]]) -> None:
    """Keep an object's annotations as what is advised of a run, until that ends.

    Args:
        url: Of the object.
        look: Gives what is advised now, and whether the run goes on.

    Raises:
        UserError: The URL names none.
        JobError: The cluster refuses it.
        TryAgainError: It could not be told how the run has ended.
    """
    told = AnnotatedAdvice(url)
    goes_on = True
    while goes_on:
        said, goes_on = look()
        why = told.tell(said)
        if why and goes_on:
            show(f"{why}; it is tried again in {LOOK_SECONDS:g} s")
        elif why:
            raise TryAgainError(why)
        if goes_on:
            time.sleep(LOOK_SECONDS)
