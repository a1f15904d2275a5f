"""Steps of a model whose gradients are large, beside plain Horovod and DDP."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.faults.__main__ import LARGE, joined
from benchmarks.numbers import Number
from benchmarks.peers import Cluster, Run, run_peer
from benchmarks.tables import Effort, Say, Table, median_of, spread

PEERS = ("ours", "ddp", "horovod")
PAIR = Cluster(
    seconds_per_sample=(1.0, 1.0), overhead_seconds=0.0, global_batch_size=32, is_real=True
)
WORK = {"width": 2240, "depth": 11, "test_steps": 0, "num_steps": 24}
"""Eleven layers of 20 MB and two small ones."""

CHECKPOINT_SECONDS = 4
NUM_PARAMETERS = 50_245_444
MIB = 2**20


def large(effort: Effort, say: Say) -> Iterator[Table]:
    """Steps with 200 MB of gradients on two workers, beside plain Horovod and DDP."""
    turns: list[dict[str, Run]] = []
    for n in range(max(3, effort.repeats)):
        turns.append({})
        for peer in PEERS[n % 3 :] + PEERS[: n % 3]:
            turns[-1][peer] = run = run_peer(peer, PAIR, WORK)
            say(f"{peer}, turn {n + 1}: {_step_seconds(run):.3f} s a step")
    yield _table(turns)
    yield _stops(effort, say)


def _stops(effort: Effort, say: Say) -> Table:
    """How long the training stands still for a checkpoint, and for a worker that joins."""
    saving, copying, joining, standing = [], [], [], []
    for n in range(max(3, effort.repeats)):
        environment = {"HETERO_HVD_CHECKPOINT_SECONDS": f"{CHECKPOINT_SECONDS}"}
        run = run_peer("ours", PAIR, WORK, environment=environment)
        saving.append(max(run.step_seconds[2:]) - median(run.step_seconds))
        copying.append(max(run.copy_seconds))
        with tempfile.TemporaryDirectory() as folder:
            seconds, step_seconds = joined(Path(folder), 3, LARGE)
        joining.append(seconds)
        standing.append(seconds - step_seconds)
        say(f"turn {n + 1}: checkpoint {saving[-1]:.2f} s, join {joining[-1]:.2f} s")
    table = Table(
        title="Stops of a large model",
        text=f"{NUM_PARAMETERS / 1e6:.0f} million parameters with momentum, 400 MB of state. A "
        f"checkpoint each {CHECKPOINT_SECONDS} s: the longest step of the first rank, less the "
        "median; and what the copy alone takes, for which that step waits. The rest of it is the "
        "competition for two cores, in which the threads that get memory for the copy and write it "
        "give way; without checkpoints the longest step is 0.05 to 0.11 s longer. A restarted "
        "worker joins two others: from the last step without it to the end of the first one with "
        "it, which is all of that step too; and less the median of its steps.",
        columns=("event", "median, range", "all"),
    )
    quantity = "50 million parameters with momentum"
    table.add_seconds(
        "a checkpoint", saving, goal_seconds=0.1, quantity=f"stall by a checkpoint, {quantity}"
    )
    table.add_seconds(
        "of that the copy", copying, goal_seconds=0.1, quantity=f"copy for a checkpoint, {quantity}"
    )
    table.add_seconds(
        "a join", joining, goal_seconds=0.5, quantity=f"first step after a join, {quantity}"
    )
    table.add_seconds(
        "a join, less a step", standing, goal_seconds=0.5, quantity=f"stall by a join, {quantity}"
    )
    return table


def _step_seconds(run: Run) -> float:
    """The median of a run's second half."""
    return median(run.step_seconds[len(run.step_seconds) // 2 :])


def _processor_seconds(run: Run) -> float:
    return median(run.processor_seconds[len(run.processor_seconds) // 2 :])


def _table(turns: Sequence[Mapping[str, Run]]) -> Table:
    table = Table(
        title="Large gradients",
        text=f"{NUM_PARAMETERS / 1e6:.0f} million parameters of type float32 on two workers with "
        "one thread each, 16 samples on each, real compute, SGD with momentum. Medians of the "
        "steps in the second half of each run; of the first rank the processor time of all "
        "threads, and the most memory of its process.",
        columns=("peer", "seconds per step", "ours / peer", "processor seconds", "peak MiB"),
    )
    ratios: dict[str, list[float]] = defaultdict(list)
    peaks: dict[str, float] = {}
    for peer in PEERS:
        runs = [turn[peer] for turn in turns]
        table.measured[peer] = seconds = [_step_seconds(run) for run in runs]
        own = [_step_seconds(turn["ours"]) for turn in turns]
        ratios[peer] = [one / other for one, other in zip(own, seconds, strict=True)]
        peaks[peer] = median(run.peak_bytes for run in runs) / MIB
        table.rows.append(
            (
                peer,
                f"{median(seconds):.3f} ({spread(seconds)})",
                "" if peer == "ours" else median_of(ratios[peer]),
                f"{median(map(_processor_seconds, runs)):.3f}",
                f"{peaks[peer]:.0f}",
            )
        )
    table.numbers += [
        Number(
            quantity=f"step with 200 MB of gradients, ours / {peer}",
            goal="<= 1",
            found=median_of(ratios[peer]),
            is_reached=median(ratios[peer]) <= 1,
        )
        for peer in PEERS[1:]
    ]
    table.numbers.append(
        Number(
            quantity="peak memory with 200 MB of gradients, beside plain Horovod's",
            goal="<= 1 x",
            found=f"{peaks['ours'] / peaks['horovod']:.2f} x",
            is_reached=peaks["ours"] <= peaks["horovod"],
        )
    )
    return table
