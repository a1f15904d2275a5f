"""Refuses scripts that would train N independent copies, at the call that shows it.

Python imports `sitecustomize` at the start of every process; the supervisor puts this folder in
front of the worker's PYTHONPATH. A script that starts Horovod or torch.distributed by itself finds
no other process here, each worker would be alone with all of the data. It ends with one line and
`EXIT_REFUSED`, wrong input. `hetero_hvd` starts Horovod too, but only after the driver has
admitted the worker, which sets `HOROVOD_RANK`.

Standard library only, and little of it: every Python process below the worker imports this.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

EXIT_REFUSED = 64
"""As in `hetero_hvd.exit_codes`, which is not imported here."""


def refuse(call: str, launcher: str) -> NoReturn:
    """End this process; the driver repeats the line."""
    sys.stderr.write(
        f"{Path(sys.argv[0]).name} calls {call} itself: started by hetero-hvd each worker would "
        "train alone. Train with hetero_hvd.Trainer (docs/guide/trainer.md), or start the script "
        f"with {launcher}\n"
    )
    raise SystemExit(EXIT_REFUSED)


def guard_horovod(basics: ModuleType) -> None:
    """All of Horovod's frameworks start it by this method."""
    start = basics.HorovodBasics.init

    @wraps(start)
    def init(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on as they are
        if "HOROVOD_RANK" not in os.environ:
            refuse("hvd.init()", "horovodrun")
        return start(*arguments, **options)

    basics.HorovodBasics.init = init


def guard_torch(distributed: Any) -> None:  # noqa: ANN401 - has what mypy does not know
    """A group of processes that the script describes itself is its own affair."""
    start = distributed.init_process_group

    @wraps(start)
    def init_process_group(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        is_described = len(arguments) > 1 or options.keys() & {"init_method", "rank", "store"}
        if not is_described and "RANK" not in os.environ:
            refuse("torch.distributed.init_process_group()", "torchrun")
        return start(*arguments, **options)

    distributed.init_process_group = init_process_group


GUARDS: dict[str, Callable[[Any], None]] = {
    "horovod.common.basics": guard_horovod,
    "torch.distributed.distributed_c10d": guard_torch,
}


class Watch:
    """Finds the modules above as Python does, and guards each as soon as it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ANN401 - Python's
        """Called by Python for each import; None leaves it to the others."""
        if name not in GUARDS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_guard(module: ModuleType) -> None:
                load(module)
                GUARDS[name](module)

            spec.loader.exec_module = load_and_guard  # type: ignore[method-assign]
        return spec


def load_next() -> None:
    """Import the `sitecustomize` that this one stands in front of, if there is one."""
    folder = Path(__file__).resolve().parent
    own = sys.modules.pop(__name__)
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != folder]
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = own


sys.meta_path.insert(0, Watch())
load_next()
