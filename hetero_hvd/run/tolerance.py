"""What watches a training never stops it: an error there is told once, counted, and passed over."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Tolerance:
    """Passes over errors of what only watches.

    Args:
        say: Shows a line.

    Attributes:
        num_errors: What has failed, in words, to how often.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.num_errors: Counter[str] = Counter()

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """Around calls that training does not depend on.

        Args:
            what: What fails if they raise, such as `the verdict`.
        """
        try:
            yield
        except Exception as error:  # whatever is wrong there, the training is right
            self.num_errors[what] += 1
            if self.num_errors[what] == 1:
                logger.exception("%s has failed", what)
                self._say(
                    f"{what} has failed and may be wrong from now on; training goes on "
                    f"({type(error).__name__}: {error}; please report it, with logs/driver.log)"
                )
