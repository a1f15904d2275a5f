"""Whether the owner of a node is there: at once when he is seen, and until he was not for a while.

The desktop policy of HTCondor: a machine is its owner's as soon as what others do on it passes a
high mark (`HighLoad`, 0.5), and guests come back when it was below a low one (`BackgroundLoad`,
0.3) for long enough, so that nothing flickers in between.
"""

from __future__ import annotations

import math

CALM_RATIO = 0.6
"""Of what counts as use when he is away: less than this is none when he is there."""


class OwnerPresence:
    """Pure: times are arguments, of one monotonic clock.

    Args:
        idle_seconds: For so long he must not be seen until he counts as gone, >= 0.
        is_here: Whether he counts as there at first.

    Attributes:
        words: By what he was seen; empty: he is not there.
    """

    def __init__(self, idle_seconds: float, *, is_here: bool = False) -> None:
        self.words = "was there a moment ago" if is_here else ""
        self._idle_seconds = idle_seconds
        self._seen_at_seconds = math.nan

    def load_limit(self, processors: float) -> float:
        """What others may use now without being taken for him, processors.

        Args:
            processors: The same while he is away.
        """
        return processors * CALM_RATIO if self.words else processors

    def look(self, seen: str, now_seconds: float) -> bool:
        """Take in what is seen of him now.

        Args:
            seen: By what; empty: nothing.
            now_seconds: When.

        Returns:
            Whether he has come or gone with that.
        """
        before = bool(self.words)
        if seen:
            self._seen_at_seconds = now_seconds
            self.words = self.words if before else seen
        elif math.isnan(self._seen_at_seconds):
            self._seen_at_seconds = now_seconds
        elif now_seconds - self._seen_at_seconds >= self._idle_seconds:
            self.words = ""
        return bool(self.words) != before
