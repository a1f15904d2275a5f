"""Which of Horovod's operations a script waits in; as `worker.session.whereabouts` for ours."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from hetero_hvd.refusal import LIBRARIES, PACKAGE
from hetero_hvd.worker.session.whereabouts import DOOR, place_of

CALLS = {
    "State.check_host_updates": "state.check_host_updates()",
    "State.commit": "state.commit()",
    "_DistributedAdasumOptimizer.step": "optimizer.step()",
    "_DistributedOptimizer.synchronize": "optimizer.step()",
    "run_fn.<locals>.wrapper": "hvd.elastic.run",
}
"""Function of Horovod to what the script calls it, where that is not its name; the outermost one
that the script has called counts."""


class Waiting:
    """Looks for it.

    Args:
        hvd: The module `horovod.torch`.
    """

    def __init__(self, hvd: ModuleType) -> None:
        folder = Path(str(hvd.__file__)).parent
        self._horovod = f"{folder.parent}/"
        self._waits = {(str(folder / "mpi_ops.py"), "synchronize"), (DOOR, "wait")}

    def waits_in(self, thread: int) -> tuple[str, str]:
        """What a thread waits in together with the other workers, and where the script called it.

        Args:
            thread: Its `threading.get_ident()`.

        Returns:
            The operation, and `script.py:41`; two empty texts if it does not wait for others.
        """
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - its name in the library's manual
        is_waiting, operation = False, "optimizer.step()"
        while frame is not None:
            code = frame.f_code
            is_waiting = is_waiting or (code.co_filename, code.co_name) in self._waits
            if is_waiting and code.co_filename.startswith(self._horovod):
                operation = CALLS.get(code.co_qualname, f"hvd.{code.co_name}()")
            elif is_waiting and not code.co_filename.startswith((PACKAGE, *LIBRARIES)):
                return operation, place_of(frame)
            frame = frame.f_back
        return (operation, "") if is_waiting else ("", "")
