"""Runs the workload under each peer, in processes of its own, and reads what it left."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hetero_hvd.core.balance.balancer import balance
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.errors import JobError
from hetero_hvd.messages import CheckpointWritten, WorkerId
from hetero_hvd.run.records.reader import read_record
from tests.kit.checkout import variables
from tests.kit.processes import end

MEASURED = "measured"
"""Ours, with measurements before the first step."""

RULES = {
    "ours": [],
    MEASURED: ["--calibrate", "auto"],
    "uniform": ["--no-balance"],
    "static": ["--rule", "static"],
    "lbb": ["--rule", "lbb"],
    "omnilearn": ["--rule", "omnilearn"],
    "oracle": ["--rule", "static"],
}
"""What `hetero-hvd run` is told for each way to divide the batch."""

OUTPUT = "output.txt"
"""What all processes of a run print."""

PEERS = (*(name for name in RULES if name != MEASURED), "horovod", "ddp")
EVEN = frozenset({"uniform", "horovod", "ddp"})
"""Those that give every worker the same share."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Emulated devices on this machine.

    Attributes:
        seconds_per_sample: Per device.
        overhead_seconds: Per step of each device.
        global_batch_size: Samples per step.
        price_per_hour: Per device, in any currency.
        is_real: The compute takes the time that it takes; the times above are not used.
        noise: Settings of `EmulateConfig` for noise and spikes.
    """

    seconds_per_sample: tuple[float, ...]
    overhead_seconds: float
    global_batch_size: int
    price_per_hour: tuple[float, ...] = ()
    is_real: bool = False
    noise: Mapping[str, float] = field(default_factory=dict)

    def with_batch(self, global_batch_size: int) -> Cluster:
        """The same devices, another batch."""
        return replace(self, global_batch_size=global_batch_size)

    @property
    def models(self) -> dict[WorkerId, StepTimeModel]:
        """The truth about each device."""
        return {
            WorkerId(f"n{i}", 0): StepTimeModel(
                overhead_seconds=self.overhead_seconds, seconds_per_sample=cost
            )
            for i, cost in enumerate(self.seconds_per_sample)
        }

    @property
    def best_shares(self) -> tuple[int, ...]:
        """The oracle's plan."""
        return balance(self.models, global_batch_size=self.global_batch_size)

    @property
    def ideal_samples_per_second(self) -> float:
        """Sum of what the devices do alone, each at its share of the oracle's plan."""
        pairs = zip(self.models.values(), self.best_shares, strict=True)
        return sum(share / model.step_seconds(share) for model, share in pairs)

    def step_seconds(self, peer: str) -> float:
        """What a step takes about, without reduction; for planning the run."""
        shares = self.best_shares
        if peer in EVEN:
            shares = (self.global_batch_size // len(shares),) * len(shares)
        pairs = zip(self.models.values(), shares, strict=True)
        return max(model.step_seconds(share) for model, share in pairs)

    def _emulation(self, seconds_per_sample: float) -> dict[str, float]:
        return {
            "seconds_per_sample": seconds_per_sample,
            "overhead_seconds": self.overhead_seconds,
            **self.noise,
        }

    def nodes(self, peer: str) -> list[dict[str, Any]]:
        """Entries of nodes.yaml; the two static splits know the speeds, the others do not."""
        shares: tuple[float, ...] = self.best_shares
        if peer == "static":  # measured beforehand, at equal shares
            even = self.global_batch_size // len(shares)
            shares = tuple(1 / model.step_seconds(even) for model in self.models.values())
        hints = [{"relative_speed": share / max(shares)} for share in shares]
        return [
            {"name": f"n{i}", "slots": 1, "devices": []}
            | ({} if self.is_real else {"emulate": self._emulation(cost)})
            | (hint if peer in {"static", "oracle"} else {})
            for i, (cost, hint) in enumerate(zip(self.seconds_per_sample, hints, strict=True))
        ]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run left.

    Attributes:
        step_seconds: Of each step.
        losses: Of each step.
        accuracies: Held-out, after every tenth step.
        tables: Per exchange, busy seconds of each worker; `hetero` only.
        decisions: Of the balancer; `hetero` only.
        blocked_seconds: The training loop's wait for each exchange; `hetero` only.
        timings: Per exchange, the fields of `StepTiming` of each worker; `hetero` only.
        processor_seconds: Of the first rank's process in each step, all of its threads.
        peak_bytes: The most memory that the first rank's process had.
        copy_seconds: For which a step waited for each checkpoint; `hetero` only.
    """

    step_seconds: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    tables: tuple[tuple[float, ...], ...] = ()
    decisions: tuple[dict[str, Any], ...] = ()
    blocked_seconds: tuple[float, ...] = ()
    table_steps: tuple[int, ...] = ()
    shares: tuple[tuple[int, ...], ...] = ()
    timings: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    processor_seconds: tuple[float, ...] = ()
    peak_bytes: int = 0
    copy_seconds: tuple[float, ...] = ()


def run_peer(
    peer: str,
    cluster: Cluster,
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 240.0,
) -> Run:
    """Train with one peer on emulated devices.

    Args:
        peer: One of `PEERS`.
        cluster: The devices.
        job: Fields of `workloads.training.Job`, without `out`, `emulate` and the batch.
        environment: Further variables of the processes.
        timeout_seconds: After which the run has failed.

    Raises:
        JobError: The run failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = cluster.nodes(peer)
        emulate = [node["emulate"] for node in nodes if "emulate" in node]
        facts = {"out": str(folder / "record.json")} | dict(job)
        facts |= {"global_batch_size": cluster.global_batch_size}
        facts |= {} if peer in RULES else {"emulate": emulate}
        (folder / "job.json").write_text(json.dumps(facts))
        (folder / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
        command = command_of(peer, folder, num_workers=len(nodes))
        own = variables(OMP_NUM_THREADS="1", **(environment or {}))
        execute(command, folder, own, timeout_seconds)
        return read_run(folder)


def command_of(peer: str, folder: Path, *, num_workers: int) -> list[str]:
    """The argument vector that starts all of a peer's workers on this machine."""
    workload = ["-m", "benchmarks.workloads.training"]
    programs = Path(sys.executable).parent
    job = str(folder / "job.json")
    if peer == "horovod":
        return [*horovodrun(num_workers), *workload, "horovod", job]
    if peer == "ddp":
        launch = [str(programs / "torchrun"), "--standalone", "--nproc-per-node", str(num_workers)]
        return [*launch, *workload, "ddp", job]
    run = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml"), *RULES[peer]]
    run += ["--output", str(folder / "out"), "--", "python"]
    return [sys.executable, *run, *workload, "hetero", job]


def horovodrun(num_workers: int) -> list[str]:
    """Starts Python on so many workers of this machine; its own words come after these."""
    launch = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", str(num_workers)]
    return [*launch, "-H", f"localhost:{num_workers}", "--network-interfaces", "lo", sys.executable]


def execute(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_seconds: float
) -> None:
    """Run it to its end; nothing that it started outlives this call.

    Raises:
        JobError: It failed; the message ends with the end of its output.
    """
    with (folder / OUTPUT).open("ab") as output:  # of the other hosts' workers too
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(timeout_seconds)
            ending = f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, ending = None, f"not ended within {timeout_seconds:.0f} s"
        finally:
            end(process, 15.0)
    if code != 0:
        tail = (folder / OUTPUT).read_text(errors="replace")[-1500:]
        raise JobError(f"{' '.join(command[:8])} …: {ending}\n{tail}")


def read_run(folder: Path) -> Run:
    """What the first rank and the driver have written."""
    record = json.loads((folder / "record.json").read_text())
    ended, used = record["ended_at_seconds"], record["used_seconds"]
    run = Run(
        step_seconds=tuple(b - a for a, b in pairwise(ended)),
        losses=tuple(record["losses"]),
        accuracies=tuple(record["accuracies"]),
        processor_seconds=tuple(b - a for a, b in pairwise(used)),
        peak_bytes=record["peak_bytes"],
    )
    if not (folder / "out" / "timings.jsonl").exists():
        return run
    lines = (folder / "out" / "timings.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["type"] == "StepsTimed"]
    decisions = (folder / "out" / "decisions.jsonl").read_text().splitlines()
    told = [event for _, event in read_record(folder / "out").events]
    return replace(
        run,
        tables=tuple(tuple(_busy(row) for row in event["timings"]) for event in events),
        shares=tuple(tuple(r["local_batch_size"] for r in e["timings"]) for e in events),
        table_steps=tuple(event["step"] for event in events),
        timings=tuple(tuple(event["timings"]) for event in events),
        blocked_seconds=tuple(event["exchange_seconds"] for event in events),
        decisions=tuple(json.loads(line) for line in decisions),
        copy_seconds=tuple(
            event.copy_seconds for event in told if isinstance(event, CheckpointWritten)
        ),
    )


def _busy(row: Mapping[str, float | None]) -> float:
    phases = ("data_wait", "transfer", "forward", "backward", "optimizer")
    return sum(row[f"{phase}_seconds"] or 0.0 for phase in phases)
