"""The supervisor of one worker process on its node: `python -m hetero_hvd.supervisor`.

The driver starts it, here or through ssh, and talks to it over standard input: first one JSON line
that says what to run, then one signal name a line. The end of the input means that the driver or
the ssh connection is gone. Whenever the supervisor goes, the whole process group of the worker
goes: no orphan, anywhere. Standard library only, so that it costs little beside the worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_hvd.core.numerics.cpu_capability import missing
from hetero_hvd.exit_codes import (
    EXIT_NO_PLACE,
    EXIT_NOT_STARTED,
    EXIT_OUT_OF_MEMORY,
    EXIT_UNFIT,
    as_exit_code,
)
from hetero_hvd.probes.gpu.leased_names import leased_names
from hetero_hvd.probes.gpu.visible_names import visible_names
from hetero_hvd.probes.kernel.control_groups import num_oom_kills
from hetero_hvd.probes.kernel.device_lease import DeviceTakenError, take_leases
from hetero_hvd.probes.kernel.life_lock import give_life_lock
from hetero_hvd.probes.kernel.parent_process import dies_with
from hetero_hvd.probes.kernel.processes import DEAD, active_seconds, session_of, state_of

if TYPE_CHECKING:
    from hetero_hvd.probes.sampling.node_orders import NodeOrders

TERM_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL, unless the driver knows better; Horovod's launcher waits as long."""

MAX_LINE_BYTES = 2**20
NO_GPU_GRANTED = "NoDevFiles"
"""What some versions of Slurm set CUDA_VISIBLE_DEVICES to where others leave it unset."""

OTHER_GPUS = ("ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""What Slurm sets for GPUs of AMD and of Intel."""

GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")
CPU_INFO = Path("/proc/cpuinfo")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
HUGE_PAGES_VARIABLE = "THP_MEM_ALLOC_ENABLE"
"""Has torch ask for huge pages for tensors from 2 MiB on. The gradients of a large model are new
memory in each step: page by page that is a tenth of the step's processor time."""

SITE = Path(__file__).parent / "worker" / "site"
"""Refuses scripts that would train alone; see the module in it."""


def lines(descriptor: int) -> Iterator[bytes]:
    """The complete lines that arrive; ends with the input, or at a line that cannot be ours."""
    rest = b""
    while len(rest) <= MAX_LINE_BYTES and (chunk := os.read(descriptor, 65536)):
        *complete, rest = (rest + chunk).split(b"\n")
        yield from complete


def interpreter() -> str:
    """This interpreter, without the link to its environment.

    `hetero-hvd install` puts another environment behind that link: what a worker imports later
    must not come from there.
    """
    program = Path(sys.executable)
    return str(program.parent.resolve() / program.name)


def visible_gpus(environment: dict[str, str]) -> list[str]:
    """The node's GPUs as CUDA would number them, without loading CUDA."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    counts = len(list(GPU_FOLDER.glob("*"))), len(list(DEVICES.glob("nvidia[0-9]*")))
    if given is not None:
        return list(visible_names(given, max(counts)))
    number = min(counts) or max(counts)  # a container may see all of its node in one of them
    return [str(index) for index in range(number)]


def show_granted_gpus_only() -> str:
    """In a step of Slurm, where no variable names a GPU, none was granted: hide all there are.

    Where Slurm does not confine its steps, those of other jobs could be used. ROCm's variable has
    numbers that CUDA's, which counts for ROCm, too, would have to be taken from anew.

    Returns:
        A note for people if there are some; empty: there are none, or they are granted.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES", NO_GPU_GRANTED)
    if given != NO_GPU_GRANTED or any(os.environ.get(name) for name in OTHER_GPUS):
        return ""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    there = visible_gpus(dict(os.environ))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if not there:
        return ""
    return (
        f"note: Slurm has granted none of the {len(there)} GPUs here: ask for them with "
        "--gpus-per-node, or name them with 'devices' if Slurm knows nothing of them"
    )


def worker_environment(order: dict[str, Any]) -> dict[str, str]:
    """This process's environment, the driver's additions, and the slot's own GPU.

    `python` in the command is this interpreter, whether its virtual environment is active or not.
    Large tensors get huge pages where the kernel has them, unless the variable says otherwise.
    """
    environment = {**os.environ, **order["environment"]}
    environment["PATH"] = os.pathsep.join(
        [str(Path(interpreter()).parent), environment.get("PATH", os.defpath)]
    )
    entries = [str(SITE), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, entries))
    if HUGE_PAGES.exists():
        environment.setdefault(HUGE_PAGES_VARIABLE, "1")
    gpus = visible_gpus(environment)
    if order["gpu"] is not None and order["gpu"] < len(gpus):
        environment["CUDA_VISIBLE_DEVICES"] = gpus[order["gpu"]]
    return environment


def processor_flags() -> set[str]:
    """What an x86-64 processor can do, as the kernel calls it; empty on another one."""
    with suppress(OSError):
        for line in CPU_INFO.read_text().splitlines():
            name, _, flags = line.partition(":")
            if name.strip() == "flags":
                return set(flags.split())
    return set()


def killed_with_parent() -> Callable[[], None]:
    """A function to run in the child: the kernel kills it when this process dies, in any way."""
    parent = os.getpid()

    def prepare() -> None:
        if not dies_with(parent):
            os._exit(EXIT_NOT_STARTED)

    return prepare


def read_order(line: bytes) -> dict[str, Any]:
    """The driver's first line.

    Raises:
        ValueError: It is no order; the text says which field is wrong.
    """
    try:
        order = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("the order is no JSON") from error
    if not isinstance(order, dict):
        raise ValueError("the order is no JSON object")  # noqa: TRY004 - what was read is wrong
    command, environment = order.get("command"), order.get("environment")
    gpu = order.get("gpu", "")
    fields = {
        "command": _are_texts(command) and bool(command),
        "directory": _are_texts([order.get("directory")]),
        "environment": isinstance(environment, dict)
        and _are_texts([*environment, *environment.values()])
        and all(name and "=" not in name for name in environment),
        "gpu": gpu is None or (type(gpu) is int and gpu >= 0),
        "lease": _is_lease(order.get("lease")),
    }
    for name, is_right in fields.items():
        if not is_right:
            raise ValueError(f"field {name!r} of the order is not as it must be")
    return order


def _is_lease(found: object) -> bool:
    """Whether it says what is to be leased, or that nothing is."""
    if not isinstance(found, dict):
        return found is None
    texts = [found.get("slot"), found.get("holder")]
    return _are_texts(texts) and isinstance(found.get("is_emulated"), bool)


def _are_texts(values: object) -> bool:
    """Whether it is a list of texts, none of which ends early for the system."""
    return isinstance(values, list) and all(
        isinstance(value, str) and "\0" not in value for value in values
    )


def _directory(text: str) -> Path:
    """Where the worker is to run.

    Raises:
        OSError: It is in the home of a user that is not there.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        why = "this machine knows no home of that user; give a whole path"
        raise OSError(f"directory {text}: {why}") from error


def leases(order: dict[str, Any]) -> list[int]:
    """Have the worker's device for it alone, as long as these descriptors are open.

    Raises:
        DeviceTakenError: Somebody has it; says who.
    """
    if (wanted := order.get("lease")) is None:
        return []
    environment = worker_environment(order)
    gpus = visible_gpus(environment) if environment.get("CUDA_VISIBLE_DEVICES") else []
    slot, is_emulated = wanted["slot"], wanted["is_emulated"]
    names = leased_names(gpus, environment, slot=slot, is_emulated=is_emulated)
    return take_leases(names, wanted["holder"], _complain)


def start(order: dict[str, Any], held: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Run the command in a process group of its own; a script gets this interpreter.

    Args:
        order: What to run.
        held: Descriptors that it holds, too.

    Raises:
        OSError: There is no such program or folder.
        ValueError: A text cannot be given to a program here.
    """
    command: list[str] = order["command"]
    if command[0].endswith(".py"):
        command = [interpreter(), *command]
    folder = _directory(order["directory"])
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=worker_environment(order),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=held,
            preexec_fn=killed_with_parent(),  # noqa: PLW1509 - no thread was started yet
        )
    except OSError as error:
        if error.filename != folder:
            raise
        raise OSError(f"directory {folder}: {error.strerror}") from error


def signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal the worker and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def tell_pulse(pid: int) -> None:
    """Tell how the worker is, in one piece, among what it writes; see `driver.output.pulse`."""
    own, of_all = active_seconds(pid), sum(map(active_seconds, session_of(pid)))
    _tell_sign(f"{state_of(pid)} {own:.3f} {of_all:.3f}")


def _tell_sign(words: str) -> None:
    with suppress(OSError):
        os.write(sys.stdout.fileno(), f"\x01hetero-hvd:{words}\x01".encode())


def node_orders() -> NodeOrders:
    """What the driver may want to know of this node."""
    # Lazily: only one supervisor of a node is asked.
    from hetero_hvd.probes.sampling.node_orders import NodeOrders  # noqa: PLC0415

    return NodeOrders(lambda: visible_gpus(dict(os.environ)), interpreter(), _complain)


def _complain(words: str) -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{words}\n".encode())


def say_goodbye(exit_code: int) -> None:
    """The last that is written, where the way here has exit codes of its own.

    See `driver.workers.goodbye`.
    """
    _tell_sign(f"goodbye {exit_code}")


def tell_of_node(what: str, orders: Iterator[bytes]) -> None:
    """Run no worker: say how many GPUs there are, or give samples until the input ends."""
    if what == "--gpus":
        sys.stdout.write(f"{len(visible_gpus(dict(os.environ)))}\n")
        sys.stdout.flush()
        return
    asked = node_orders()
    for line in orders:
        asked.obey(line)


class StopGrace:
    """The time between SIGTERM and SIGKILL; may change while it passes."""

    def __init__(self) -> None:
        self._seconds = TERM_GRACE_SECONDS
        self._changed = threading.Event()

    def allow(self, seconds: bytes) -> None:
        """Take a new one."""
        with suppress(ValueError):
            self._seconds = float(seconds)
            self._changed.set()

    def wait(self) -> None:
        """Until it is over."""
        began_at_seconds = time.monotonic()
        while (left := began_at_seconds + self._seconds - time.monotonic()) > 0:
            self._changed.wait(left)
            self._changed.clear()


def obey(
    child: subprocess.Popen[bytes],
    orders: Iterator[bytes],
    ending: threading.Event,
    killing: threading.Event,
    grace: StopGrace,
) -> None:
    """Read the driver's further orders; the end of the input ends the worker."""
    asked: NodeOrders | None = None
    try:
        for line in orders:
            if line == b"KILL":
                killing.set()
                signal_group(child, signal.SIGKILL)
            elif line == b"TERM":
                ending.set()
            elif line.startswith(b"GRACE "):
                grace.allow(line.removeprefix(b"GRACE "))
            elif line == b"LOOK":
                tell_pulse(child.pid)
            else:
                asked = asked or node_orders()
                asked.obey(line)
    finally:  # also after an error of ours: nobody would hear the order to end any more
        ending.set()


def end_when_told(
    child: subprocess.Popen[bytes], ending: threading.Event, grace: StopGrace, *, is_script: bool
) -> None:
    """SIGTERM first; what is left after the grace gets SIGKILL.

    A Python script ends what it has started itself; its data loader must not die before it, as it
    still finishes a step. Any other command may not pass the signal on.
    """
    ending.wait()
    if is_script:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
    else:
        signal_group(child, signal.SIGTERM)
    grace.wait()
    signal_group(child, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None, *, note_without_gpu: str = "") -> int:
    """Supervise one worker; with `--gpus` or `--samples`, only tell of this node.

    Args:
        arguments: Words of the command line; default: those of this process.
        note_without_gpu: For people, if the driver does not say which GPUs the worker has.

    Returns:
        The worker's exit code; 128 + n if signal n ended it; 127 if it could not be started; 69 if
        another job has its device; 71 if the kernel killed it for want of memory; 78 if this
        processor is not fit for it.
    """
    orders = lines(sys.stdin.fileno())
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--gpus"], ["--samples"]):
        tell_of_node(words[0], orders)
        return 0
    first = next(orders, None)
    if first is None:
        return EXIT_NOT_STARTED
    ending, killing, grace = threading.Event(), threading.Event(), StopGrace()
    num_kills = num_oom_kills()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    try:
        order = read_order(first)
        if why := missing(worker_environment(order), processor_flags()):
            sys.stderr.write(f"{why}\n")
            return EXIT_UNFIT
        if note_without_gpu and "CUDA_VISIBLE_DEVICES" not in order["environment"]:
            sys.stderr.write(f"{note_without_gpu}\n")
        held, life_lock = leases(order), give_life_lock(order["environment"])
        child = start(order, [*held, *life_lock.descriptors])
    except (OSError, ValueError) as error:
        is_taken = isinstance(error, DeviceTakenError)
        sys.stderr.write(f"{error}\n" if is_taken else f"cannot start the worker: {error}\n")
        return EXIT_NO_PLACE if is_taken else EXIT_NOT_STARTED
    is_script = order["command"][0].endswith(".py")
    tasks = (
        lambda: obey(child, orders, ending, killing, grace),
        lambda: end_when_told(child, ending, grace, is_script=is_script),
    )
    for task in tasks:
        threading.Thread(target=task, daemon=True).start()
    life_lock.watch(lambda: _tell_sign(f"{DEAD} 0.000 0.000"))
    # Not reaped yet, the worker keeps its process group's number from being given to somebody else.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    signal_group(child, signal.SIGKILL)
    code = child.wait()
    is_asked_for = killing.is_set() or ending.is_set()
    if code == -signal.SIGKILL and not is_asked_for and num_oom_kills() > num_kills:
        return EXIT_OUT_OF_MEMORY
    return as_exit_code(code)


def run() -> int:
    """See `main`; behind `--step`, it is a step of Slurm: only what that has granted is there.

    The exit code is 0 then, and the worker's is told.
    """
    words = sys.argv[1:]
    if words[:1] != ["--step"]:
        return main(words)
    say_goodbye(main(words[1:], note_without_gpu=show_granted_gpus_only()))
    return 0


def end(exit_code: int) -> None:
    """End at once: others wait for the news that a worker is gone, and nothing is left to do."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    end(run())
