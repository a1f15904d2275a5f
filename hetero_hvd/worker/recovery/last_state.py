"""The replica as it is when the script leaves its loop before the last epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.recovery.replica import Replica

logger = logging.getLogger(__name__)


class LastState:
    """Keeps it once, if it is whole.

    The script may do what it likes with the model afterwards, so it is taken when the loop is left.

    Args:
        replica: The state.

    Attributes:
        checksum: Of what was kept; empty: nothing was.
        is_trusted: Unless replicas differ and nobody can tell which is right: none is kept then.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._is_torn = False
        self.checksum = ""
        self.is_trusted = True

    def applying(self) -> LastState:
        """Around what changes the replica: an error of the script's in it leaves no whole one."""
        return self

    def __enter__(self) -> None:
        self._is_torn = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_torn = kind is not None and not issubclass(kind, Interrupted)

    def keep(self, drain: Callable[[], object], write: Callable[[], object]) -> None:
        """The script takes no more steps.

        Args:
            drain: Applies what is under way.
            write: Writes the state down.
        """
        if self.checksum or self._is_torn or not self.is_trusted:
            return
        try:
            drain()
            self.checksum = self._replica.checksum()
            write()
        except Exception:  # whatever ends the script may have broken its device too
            logger.exception("the state at the end of the loop is not kept")
