"""`hetero_hvd.phase`: the user's own names for parts of the script."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from hetero_hvd.core.names import RECORDED_NAME
from hetero_hvd.errors import UserError
from hetero_hvd.messages import PHASES
from hetero_hvd.worker.session.phase_sessions import phase_sessions

MAX_NAMES = 32
"""Each is carried in every message and record of the run."""


class NamedTimes:
    """Seconds and counts of named blocks since the last `take`; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def admit(self, name: str) -> None:
        """Check a name.

        Raises:
            UserError: It is malformed, one of ours, or one too many.
        """
        RECORDED_NAME.check("phase", name)
        if name in self._names:
            return
        if name in PHASES:
            raise UserError(
                f"phase {name!r}: the trainer times that itself; choose another name than "
                f"{', '.join(PHASES)}"
            )
        with self._lock:
            if len(self._names) >= MAX_NAMES:
                raise UserError(
                    f"phase {name!r}: there are {MAX_NAMES} names already, which is the most; "
                    "put no number or file name into a phase's name"
                )
            self._names.add(name)

    def add(self, name: str, seconds: float) -> None:
        """One block has ended."""
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> tuple[dict[str, float], dict[str, int]]:
        """Seconds and counts by name; both are empty afterwards."""
        with self._lock:
            taken = self._seconds, self._counts
            self._seconds = {}
            self._counts = {}
        return taken


named_times = NamedTimes()
"""Of this process: a script may name a phase before it has a trainer."""


class phase:  # noqa: N801 - read as a word: `with hetero_hvd.phase("augment")`
    """Time a block of the script under a name; `hetero-hvd report` and the records show it.

    Example:
        with hetero_hvd.phase("augment"):
            images = augment(images)

    It is the host's time: work that a GPU does later is not in it. Blocks may be nested, and stand
    inside or outside of steps; time outside of the trainer's own phases is also in `other`.

    Args:
        name: Up to 64 letters, digits, `_`, `.`, `-`, with a letter or digit at both ends; at most
            32 names in a process.
        session: Whether the cluster's hub records all machines meanwhile, as a session of this
            name; from the first worker that enters the block until the last one leaves it.

    Raises:
        UserError: The name cannot be used.
    """

    __slots__ = ("_began_at", "_is_session", "_name")

    def __init__(self, name: str, *, session: bool = False) -> None:
        named_times.admit(name)
        self._name = name
        self._is_session = session
        self._began_at = 0.0

    def __enter__(self) -> None:
        if self._is_session:
            phase_sessions.enter(self._name)
        self._began_at = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        named_times.add(self._name, time.perf_counter() - self._began_at)
        if self._is_session:
            phase_sessions.leave(self._name)
