"""Which of Horovod's operations a script waits in; as `worker.session.whereabouts` for ours."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from hetero_hvd.refusal import LIBRARIES, PACKAGE
from hetero_hvd.worker.session.whereabouts import DOOR, frames_from, place_of

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
        operation = ""
        for frame in frames_from(self._waits, thread):
            code = frame.f_code
            operation = operation or "optimizer.step()"
            if code.co_filename.startswith(self._horovod):
                operation = CALLS.get(code.co_qualname, f"hvd.{code.co_name}()")
            elif not code.co_filename.startswith((PACKAGE, *LIBRARIES)):
                return operation, place_of(frame)
        return operation, ""
