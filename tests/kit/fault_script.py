"""A training that faults are scheduled in, and that proves afterwards what was trained.

Usage: fault_script.py JSON, the fields of `Script`. One parameter per sample counts, exactly, how
often the sample has contributed to a step; another one depends on the order of the samples too. So
the state itself says whether anything was lost, repeated or reordered.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import hetero_hvd
from hetero_hvd.probes.kernel import life_lock
from hetero_hvd.worker.shards import sharded_optimizer

NEVER_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """What to train, and what goes wrong.

    Attributes:
        folder: For traces, results and the marks of faults that have fired.
        epochs: Passes over the data.
        num_samples: In the data; a multiple of `batch_size` makes the counts exact.
        batch_size: Global; a power of two.
        step_seconds: Each worker's compute in each call of its loss function.
        slow: Worker to how many times as long it takes; others take the time once.
        update_seconds: Worker to how much longer each of its updates takes, until the file of
            `patient_until` is there: so late it comes to reductions, even without samples.
        num_workers: From `patient_from` on a step takes `patient_seconds` longer as long as fewer
            train, so that the training does not end before they are back.
        patient_seconds: As above.
        patient_from: A step; 0: the middle.
        patient_until: Name of a file in the folder; until it is there, steps from `patient_from` on
            take longer in any case. Empty: none.
        loader_processes: That read the data of each worker, where faults of the place `load` then
            happen; 0: it reads them itself.
        ballast: Further parameters that are reduced in each step.
        move_blocks: Of an optimizer's state in parts, what moves at once; 0: as much as usual.
        faults: Each with `worker`, `kind` and what the kind needs; each fires once: at `step`, so
            many `delay_seconds` after the fault of the number `after_fault`, or after there is
            something of the pattern `once_there` in the folder. With `linger_seconds` the worker
            then has so long to do when it leaves.
        options: Further arguments of the trainer.
    """

    folder: Path
    epochs: int = 5
    num_samples: int = 512
    batch_size: int = 64
    step_seconds: float = 0.02
    slow: dict[str, float] = field(default_factory=dict)
    update_seconds: dict[str, float] = field(default_factory=dict)
    num_workers: int = 0
    patient_seconds: float = 0.3
    patient_from: int = 0
    patient_until: str = ""
    loader_processes: int = 0
    ballast: int = 0
    move_blocks: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


class Faults:
    """The faults of this worker; each is marked in the folder before it happens."""

    def __init__(self, script: Script, worker: str) -> None:
        self._folder = script.folder
        self._linger_seconds = 0.0
        self._mine = [
            (index, fault)
            for index, fault in enumerate(script.faults)
            if fault["worker"] == worker and not self._mark(index).exists()
        ]
        for index, fault in self._mine:
            if "after_fault" in fault or "once_there" in fault:
                threading.Thread(target=self._follow, args=(index, fault), daemon=True).start()

    def fire(self, place: str, step: int, model: Model) -> float:
        """Let happen what is due here; gives a factor for the loss."""
        factor = 1.0
        for index, fault in list(self._mine):
            is_due = (
                "step" in fault and step >= fault["step"]
            )  # late gradients come several at once
            is_due &= fault.get("place", "loss") == place
            if is_due and ("once_fired" not in fault or self._mark(fault["once_fired"]).exists()):
                self._mine.remove((index, fault))
                factor *= self._happen(index, fault, model)
        return factor

    @contextmanager
    def lingering(self) -> Iterator[None]:
        """Around the training: what the script still has to do, whatever ended that."""
        try:
            yield
        finally:
            time.sleep(self._linger_seconds)

    def _mark(self, index: int) -> Path:
        return self._folder / f"fired-{index}"

    def _follow(self, index: int, fault: dict[str, Any]) -> None:
        wanted = fault.get("once_there") or self._mark(fault["after_fault"]).name
        while not self._is_there(wanted):
            time.sleep(0.002)
        time.sleep(fault.get("delay_seconds", 0.0))
        self._happen(index, fault, None)

    def _is_there(self, pattern: str) -> bool:
        with suppress(OSError):  # what is looked into is removed
            return any(self._folder.glob(pattern))
        return False

    def _happen(self, index: int, fault: dict[str, Any], model: Model | None) -> float:
        # A worker that was stopped must not leave a half-written mark: rename makes it whole.
        partial = self._mark(index).with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"at_seconds": time.monotonic(), "pid": os.getpid()}))
        partial.rename(self._mark(index))
        self._linger_seconds = fault.get("linger_seconds", 0.0)
        return KINDS[fault["kind"]](fault, model)


class Model(torch.nn.Module):
    """Counts the samples, and learns something that depends on their order."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(script.num_samples))
        self.ordered = torch.nn.Parameter(torch.ones(8))
        self.ballast = torch.nn.Parameter(torch.zeros(script.ballast))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = torch.sin(index.double().unsqueeze(1) * torch.arange(1, 9)).float()
        learned = ((x * self.ordered).sum(1) - x[:, 0]).square().mean()
        return learned - self.counts[index].mean() + 0 * self.ballast.sum()


class Indices(Dataset[int]):
    """Each sample is its own index."""

    def __init__(self, num_samples: int, before_load: Callable[[], object]) -> None:
        self._num_samples = num_samples
        self._before_load = before_load

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        self._before_load()
        return index


def _signal(number: int) -> Callable[[dict[str, Any], Model | None], float]:
    def send(*_: object) -> float:
        os.kill(os.getpid(), number)
        return 1.0

    return send


def _raise(fault: dict[str, Any], _: Model | None) -> float:
    error = ValueError if fault.get("error") == "shape" else ArithmeticError
    raise error("the script is wrong")


def _sleep(fault: dict[str, Any], _: Model | None) -> float:
    time.sleep(fault.get("seconds", NEVER_SECONDS))
    return 1.0


def _hold_the_interpreter(fault: dict[str, Any], _: Model | None) -> float:
    """Compute and never let another thread run; for ever, in one call, without `seconds`."""
    seconds = fault.get("seconds")
    if seconds is None:
        re.match(r"(a+)+$", "a" * 64 + "b")
        return 1.0
    before, ends_at = sys.getswitchinterval(), time.perf_counter() + seconds
    sys.setswitchinterval(1000 * seconds)  # so long another thread waits before it asks
    while time.perf_counter() < ends_at:
        pass
    sys.setswitchinterval(before)
    return 1.0


def _exit(fault: dict[str, Any], _: Model | None) -> float:
    os._exit(fault.get("code", 1))


def _corrupt(_: dict[str, Any], model: Model | None) -> float:
    if model is not None:
        with torch.no_grad():
            model.ordered[3] += 1e-3
    return 1.0


def _spoil_a_gradient(_: dict[str, Any], model: Model | None) -> float:
    """From now on, and only of the gradient: the loss stays finite."""
    if model is not None:
        model.ordered.register_hook(lambda gradient: gradient * math.inf)
    return 1.0


KINDS: dict[str, Callable[[dict[str, Any], Model | None], float]] = {
    "kill": _signal(signal.SIGKILL),
    "segfault": _signal(signal.SIGSEGV),
    "stop": _signal(signal.SIGSTOP),
    "terminate": _signal(signal.SIGTERM),
    "raise": _raise,
    "sleep": _sleep,
    "hold_the_interpreter": _hold_the_interpreter,
    "exit": _exit,
    "corrupt": _corrupt,
    "not_a_number": lambda *_: math.nan,
    "bad_gradient": _spoil_a_gradient,
    "infinite": lambda *_: math.inf,
}


def _make(
    script: Script, faults: Faults
) -> tuple[Model, torch.optim.Optimizer, DataLoader[Any], list[int]]:
    model = Model(script)
    optimizer = torch.optim.SGD(
        [
            {"params": [model.counts], "lr": 1.0},
            {"params": [model.ordered], "lr": 0.01, "momentum": 0.9, "weight_decay": 0.01},
            {"params": [model.ballast], "lr": 0.01, "momentum": 0.9},
        ]
    )
    applied = [0]
    data = Indices(script.num_samples, lambda: faults.fire("load", applied[0], model))
    loader = DataLoader(
        data,
        script.batch_size,
        shuffle=True,
        num_workers=script.loader_processes,
        multiprocessing_context="fork" if script.loader_processes else None,
    )
    return model, optimizer, loader, applied


def _samples_applied(trainer: hetero_hvd.Trainer, num_samples: int) -> int:
    """Since the start of training, in steps or in rounds of any size."""
    position = trainer._state.position  # noqa: SLF001 - scripts have no use for it
    in_epoch = position.used_samples
    if chunks := position.chunks:
        in_epoch = min(num_samples, chunks["size"] * (chunks["frontier"] - len(chunks["returned"])))
    return position.epoch * num_samples + in_epoch


def main() -> None:
    """Train, and write down what happened."""
    script = Script(**json.loads(sys.argv[1]) | {"folder": Path(json.loads(sys.argv[1])["folder"])})
    worker = os.environ["HETERO_HVD_WORKER"]
    faults = Faults(script, worker)
    torch.manual_seed(0)
    sharded_optimizer.MOVE_BLOCKS = script.move_blocks or sharded_optimizer.MOVE_BLOCKS
    model, optimizer, loader, applied = _make(script, faults)
    faults.fire("start", 0, model)
    if seconds := script.update_seconds.get(worker, 0.0):
        until = script.folder / script.patient_until
        optimizer.register_step_pre_hook(lambda *_: time.sleep(0 if until.exists() else seconds))
    trainer = hetero_hvd.Trainer(model, optimizer, loader, **script.options)
    patient_from = script.patient_from or script.epochs * len(loader) / 2
    name = f"{worker.replace(':', '-')}.{os.getpid()}"
    slowness = script.slow.get(worker, 1.0)

    def loss(index: torch.Tensor) -> torch.Tensor:
        is_late = trainer.applied_steps > patient_from
        is_missing = is_late and trainer.num_workers < script.num_workers
        is_missing |= is_late and not (script.folder / script.patient_until).exists()
        time.sleep(script.step_seconds * slowness + is_missing * script.patient_seconds)
        mean: torch.Tensor = model(index)
        return mean * faults.fire("loss", trainer.applied_steps, model)

    trace_file = script.folder / f"trace-{name}.jsonl"
    with faults.lingering(), trace_file.open("a", buffering=1) as trace:
        for _ in trainer.epochs(script.epochs):
            for index in trainer.batches():
                trainer.step(loss, index)
                applied[0] = trainer.applied_steps
                line = [time.monotonic(), trainer.applied_steps, len(index), trainer.num_workers]
                line.append(_samples_applied(trainer, script.num_samples))
                trace.write(json.dumps(line) + "\n")
                faults.fire("after", trainer.applied_steps, model)
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    # Rounds of any size are scaled by that: their counts are exact but for the last bits.
    counts = (model.counts.detach() * script.batch_size).round(decimals=3).tolist()
    result = {
        "worker": worker,
        "applied_steps": trainer.applied_steps,
        "times_used": [min(counts), max(counts)],
        "holds_life_lock": life_lock.is_held(),
        "state": sha256(state).hexdigest(),
    }
    (script.folder / f"result-{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
