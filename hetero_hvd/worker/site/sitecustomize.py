"""Lets scripts of Horovod take part in the job, and refuses those that would train alone.

Python imports `sitecustomize` at the start of every process; the supervisor puts this folder in
front of the worker's PYTHONPATH. A script that starts Horovod by itself becomes a worker of the job
at that call; `hetero_hvd` starts Horovod, too, but only after the driver has admitted the worker,
which sets `HOROVOD_RANK`. A script that starts torch.distributed finds no other process here: each
worker would be alone with all of the data. It ends with one line and `EXIT_REFUSED`, wrong input.

Standard library only, and little of it: every Python process below the worker imports this.
"""

import atexit
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

EXIT_REFUSED = 64
"""As in `hetero_hvd.exit_codes`, which is not imported here."""

QUICK_END = "hetero_hvd.worker.session.ending.quick_end"

GUIDE = "docs/guide/migrate.md"

OF_TORCHRUN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"})
"""Variables that torchrun sets, and scripts for it look for."""

OF_DDP = (
    "take out init_process_group, DistributedDataParallel and DistributedSampler, and train with "
    "hetero_hvd.Trainer"
)

GIVEN = os.environ.get("HETERO_HVD_TORCHRUN_VARIABLES") == "1"
"""Whether the driver has set these variables: a script may read them, but nobody is there to meet
at MASTER_ADDR. Packages that see them start torch.distributed by themselves."""

OR_OFF = "; or, if a package does it by itself, leave torchrun_variables off"


OF_DEEPSPEED = (
    "take DeepSpeed out, as it shards the model over equal processes and each worker holds the "
    "whole model here, and train with hetero_hvd.Trainer"
)


def refuse(what: str, remedy: str, launcher: str) -> NoReturn:
    """End this process; the driver repeats the line.

    Args:
        what: The script does that shows it.
        remedy: What to do.
        launcher: That the script is made for.
    """
    sys.stdout.flush()
    sys.stderr.write(
        f"{Path(sys.argv[0]).name} {what}: started by hetero-hvd each worker would train alone: "
        f"{remedy} ({GUIDE}), or start the script with {launcher}\n"
    )
    raise SystemExit(EXIT_REFUSED)


def has_own_group() -> bool:
    """Whether the script, or who has started it, describes a group of processes of its own."""
    return "RANK" in os.environ and not GIVEN


def take_part(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - whatever the script gives
    """A script that trains by Horovod itself becomes a worker at its first `hvd.init()`."""
    hvd = sys.modules.get("horovod.torch")
    if "hetero_hvd.worker.trainer" in sys.modules:
        what, remedy = "calls hvd.init(), and so does hetero_hvd.Trainer", "take out that call"
    elif hvd is None:
        what = "trains by Horovod for another framework than PyTorch"
        remedy = "write it for PyTorch"
    elif arguments or options:
        what, remedy = "gives hvd.init() arguments", "take them out"
    else:
        importlib.import_module("hetero_hvd.integrations.horovod.start").begin(hvd)
        return
    refuse(what, remedy, "horovodrun")


def guard_horovod(basics: ModuleType) -> None:
    """All of Horovod's frameworks start it by this method."""
    start = basics.HorovodBasics.init

    @wraps(start)
    def init(self: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on as they are
        if "HOROVOD_RANK" not in os.environ:
            return take_part(*arguments, **options)
        return start(self, *arguments, **options)

    basics.HorovodBasics.init = init


def guard_torch(distributed: Any) -> None:  # noqa: ANN401 - has what mypy does not know
    """A group of processes that the script describes itself is its own affair."""
    start = distributed.init_process_group
    signature = inspect.signature(start)

    @wraps(start)
    def init_process_group(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        given = signature.bind_partial(*arguments, **options).arguments
        has_address = given.get("init_method") not in (None, "env://") or "store" in given
        has_rank = "rank" in given or has_own_group()
        is_own = has_rank and "MASTER_ADDR" in os.environ and not GIVEN
        if not has_address and not is_own:
            what = "calls torch.distributed.init_process_group()"
            refuse(what, OF_DDP + OR_OFF * GIVEN, "torchrun")
        return start(*arguments, **options)

    distributed.init_process_group = init_process_group


def guard_accelerate(module: Any) -> None:  # noqa: ANN401 - as above
    """Its processes are those that torchrun starts; what other packages make of it is theirs."""
    start = module.Accelerator.__init__

    @wraps(start)
    def init(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as above
        caller = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001 - as the manual has it
        if caller == "__main__" and not has_own_group():
            remedy = "take out accelerate.Accelerator, and train with hetero_hvd.Trainer"
            refuse("makes an accelerate.Accelerator", remedy, "accelerate launch")
        start(self, *arguments, **options)

    module.Accelerator.__init__ = init


def guard_transformers(module: Any) -> None:  # noqa: ANN401 - as above
    """Its own Trainer knows of no other worker; ours is made of it."""
    remedy = "take hetero_hvd.integrations.huggingface.Trainer in its place"
    guard_method(
        module.Trainer,
        "train",
        lambda trainer: any(is_ours(kind) for kind in type(trainer).__mro__),
        ("trains with transformers.Trainer", remedy, "accelerate launch"),
    )


def guard_lightning(module: Any) -> None:  # noqa: ANN401 - as above
    """A Trainer whose strategy is not ours knows of no other worker."""
    strategy = "hetero_hvd.integrations.lightning.HeteroStrategy()"
    guard_method(
        module.Trainer,
        "fit",
        lambda trainer: is_ours(type(trainer.strategy)),
        (
            "fits with a Lightning Trainer that has no HeteroStrategy",
            f"give it strategy={strategy}, and import lightning.pytorch",
            "torchrun",
        ),
    )


def guard_training_arguments(module: Any) -> None:  # noqa: ANN401 - as above
    """It is transformers that looks for DeepSpeed, as soon as the argument is given."""
    guard_method(
        module.TrainingArguments,
        "__post_init__",
        lambda given: not given.deepspeed,
        ("gives TrainingArguments deepspeed=...", OF_DEEPSPEED, "deepspeed"),
        has_other=False,
    )


def guard_deepspeed(module: Any) -> None:  # noqa: ANN401 - as above
    """Packages that can do with it import it, too: what counts is that the script starts it."""
    for name in ("initialize", "init_distributed", "init_inference"):
        words = (f"calls deepspeed.{name}()", OF_DEEPSPEED, "deepspeed")
        if hasattr(module, name):
            guard_method(module, name, lambda *_: False, words, has_other=False)


def is_ours(kind: type) -> bool:
    """Whether a class belongs to hetero_hvd."""
    return kind.__module__.partition(".")[0] == "hetero_hvd"


def guard_method(
    kind: Any,  # noqa: ANN401 - as above
    name: str,
    is_known: Callable[..., bool],
    words: tuple[str, str, str],
    *,
    has_other: bool = True,
) -> None:
    """Refuse a training in which nobody takes part.

    Args:
        kind: The class, or the module.
        name: Of its function.
        is_known: Whether a call with these arguments is none.
        words: What the script does, what to do about it, and the launcher that it is made for.
        has_other: Whether a script that has also a trainer of ours may call it.
    """
    start = getattr(kind, name)

    @wraps(start)
    def train(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        takes_part = has_other and "hetero_hvd.worker.trainer" in sys.modules
        if not takes_part and not has_own_group() and not is_known(*arguments[:1]):
            refuse(*words)
        return start(*arguments, **options)

    setattr(kind, name, train)


def guard_variables() -> None:
    """A script that looks for a variable of torchrun's in vain is told what that means."""
    previous = sys.excepthook

    def raised(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        name = error.args[0] if kind is KeyError and len(error.args) == 1 else None
        if not isinstance(name, str) or name not in OF_TORCHRUN or not is_of_environment(trace):
            previous(kind, error, trace)
            return
        try:
            remedy = f"{OF_DDP}, or with torchrun_variables in nodes.yaml if it only reads them"
            refuse(f"looks for {name}, which torchrun sets", remedy, "torchrun")
        except SystemExit:
            os._exit(EXIT_REFUSED)

    sys.excepthook = raised


def is_of_environment(trace: TracebackType | None) -> bool:
    """Whether an error was raised where environment variables are looked up, in `os` itself."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code is type(os.environ).__getitem__.__code__


GUARDS: dict[str, Callable[[Any], None]] = {
    "horovod.common.basics": guard_horovod,
    "torch.distributed.distributed_c10d": guard_torch,
    "accelerate.accelerator": guard_accelerate,
    "transformers.trainer": guard_transformers,
    "transformers.training_args": guard_training_arguments,
    "deepspeed": guard_deepspeed,
    "lightning.pytorch.trainer.trainer": guard_lightning,
    "pytorch_lightning.trainer.trainer": guard_lightning,
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


def leave_cycles() -> None:
    """The first exit hook, and so the last that runs: the end of a worker, where it has one."""
    if (found := sys.modules.get(QUICK_END)) is not None:
        found.leave_cycles()


atexit.register(leave_cycles)
sys.meta_path.insert(0, Watch())
guard_variables()
load_next()
