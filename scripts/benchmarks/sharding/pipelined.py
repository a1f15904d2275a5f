"""The model of `deep` as two stages of torch.distributed.pipelining: `… FOLDER`, as there."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.sharding.deep import model_of, samples_of
from benchmarks.sharding.jobs import DeepJob, DeepResult

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def main() -> None:
    """Train one stage, and say how it went."""
    folder = Path(sys.argv[1])
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=DeepJob)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = model_of(job)
    num_parameters = sum(each.numel() for each in model.parameters())
    model.layers = model.layers[: job.cut] if rank == 0 else model.layers[job.cut :]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = samples_of(job)
    part = x[: job.batch // job.num_micro_batches]
    stage = PipelineStage(model, rank, 2, torch.device("cpu"), input_args=(part,))
    schedule = SCHEDULES[job.schedule](
        stage, job.num_micro_batches, loss_fn=lambda found, y: (found - y).square().mean()
    )
    ended_at: list[float] = []
    for _ in range(job.num_steps):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        optimizer.step()
        ended_at.append(time.perf_counter())
    found = DeepResult(
        num_parameters=num_parameters,
        step_seconds=[after - before for before, after in pairwise(ended_at)],
    )
    (folder / f"rank-{rank}.json").write_bytes(msgspec.json.encode(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
