"""The same little training under stock Elastic Horovod and under torchrun, for comparison.

Usage: peer_script.py horovod|ddp FOLDER STEPS FAULT_STEP. Rank 1 of the first start kills itself at
FAULT_STEP; each process writes the time of every step. Both keep their state the way their manuals
say: Horovod commits every 10 steps, DDP saves a checkpoint every 10 steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

STEP_SECONDS, COMMIT_STEPS = 0.02, 10


class Diary:
    """Writes down each step, and lets the fault happen once."""

    def __init__(self, folder: Path, fault_step: int) -> None:
        self._folder = folder
        self._fault_step = fault_step
        self._file = (folder / f"trace-peer.{os.getpid()}.jsonl").open("a", buffering=1)

    def before(self, step: int, rank: int) -> None:
        """Compute; die if it is time."""
        time.sleep(STEP_SECONDS)
        mark = self._folder / "fired-0"
        if step == self._fault_step and rank == 1 and not mark.exists():
            mark.write_text(json.dumps({"at_seconds": time.monotonic(), "pid": os.getpid()}))
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, step: int, size: int) -> None:
        """A step is applied."""
        self._file.write(json.dumps([time.monotonic(), step, 0, size]) + "\n")


def _parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train_horovod(diary: Diary, num_steps: int) -> None:
    """As docs/elastic.rst of Horovod shows it."""
    import horovod.torch as hvd  # noqa: PLC0415 - one peer at a time

    hvd.init()
    model, plain = _parts()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

    def train(state: Any) -> None:  # noqa: ANN401
        while state.step < num_steps:
            diary.before(state.step, hvd.rank())
            optimizer.zero_grad()
            model(torch.ones(16, 8)).square().mean().backward()
            optimizer.step()
            state.step += 1
            diary.after(state.step, hvd.size())
            if state.step % COMMIT_STEPS == 0:
                state.commit()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    hvd.elastic.run(train)(state)


def _store() -> Any:  # noqa: ANN401 - torch does not export the type
    """The agent's store, apart for each restart.

    With the default one the restarted processes (torch 2.13, one node) meet the addresses of those
    that were ended, and no restart ever succeeds.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    distributed: Any = torch.distributed
    store = distributed.TCPStore(address, port, is_master=False)
    prefix = "attempt-" + os.environ["TORCHELASTIC_RESTART_COUNT"]
    return distributed.PrefixStore(prefix, store)


def train_ddp(diary: Diary, num_steps: int, folder: Path) -> None:
    """DistributedDataParallel with a checkpoint to restart from, as torchrun's manual shows it."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", store=_store(), rank=rank, world_size=size)
    model, optimizer = _parts()
    saved, step = folder / "ddp.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        step = state["step"]
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    while step < num_steps:
        diary.before(step, rank)
        optimizer.zero_grad()
        wrapped(torch.ones(16, 8)).square().mean().backward()
        optimizer.step()
        step += 1
        diary.after(step, size)
        if step % COMMIT_STEPS == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, saved.with_suffix(".new"))
            saved.with_suffix(".new").rename(saved)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Train."""
    peer, folder, num_steps, fault_step = sys.argv[1:]
    diary = Diary(Path(folder), int(fault_step))
    if peer == "horovod":
        train_horovod(diary, int(num_steps))
    else:
        train_ddp(diary, int(num_steps), Path(folder))


if __name__ == "__main__":
    main()
