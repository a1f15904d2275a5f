"""Real CPU training on three hosts of unequal speed: namespaces with CPU quotas and an sshd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

from hetero_hvd.bench.numbers import Number
from hetero_hvd.bench.peers import RULES, Run, execute, read_run
from hetero_hvd.bench.tables import Effort, Say, Table, second_half_seconds, spread
from hetero_hvd.bench.virtual_cluster import VirtualCluster, missing_for_a_cluster, running_cluster
from hetero_hvd.errors import JobError

QUOTAS = {"fast": 70, "half": 35, "quarter": 18}
"""Percent of one core; of two cores they leave the driver and the system enough to keep them:
where their sum comes near two cores, what is measured is who is in whose way."""

BATCH, PORT = 5040, 29517
JOB = {"width": 512, "depth": 3, "steps_per_epoch": 40, "global_batch_size": BATCH}
PEERS = ("ours", "uniform", "static", "lbb", "omnilearn", "horovod", "ddp")
EVEN = ("uniform", "horovod", "ddp")
TIMEOUT_SECONDS = 300.0


class Race:
    """Runs one peer after the other on the same hosts.

    Args:
        cluster: The hosts.
        say: For progress.
    """

    def __init__(self, cluster: VirtualCluster, say: Say) -> None:
        self._cluster = cluster
        self._say = say
        self.speeds: dict[str, float] = {}

    def measure_solo(self, num_steps: int) -> None:
        """Each host alone, at the share that its quota gives it: samples per second."""
        for name, quota in QUOTAS.items():
            share = BATCH * quota // sum(QUOTAS.values())
            run = self.run("uniform", {"num_steps": num_steps, "global_batch_size": share}, (name,))
            self.speeds[name] = share / second_half_seconds(run)
            self._say(f"{name} alone: {self.speeds[name]:.0f} samples/s")

    def run(self, peer: str, job: dict[str, Any], names: Sequence[str] = tuple(QUOTAS)) -> Run:
        """Train with one peer.

        Raises:
            JobError: The run failed.
        """
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            facts = JOB | {"out": str(folder / "record.json")} | job
            (folder / "job.json").write_text(json.dumps(facts))
            variables = os.environ | {"OMP_NUM_THREADS": "1"}
            with ExitStack() as stack:
                if peer == "ddp":
                    self._start_others(stack, folder, names, variables)
                command = self._command(peer, folder, names)
                execute(command, folder, variables, TIMEOUT_SECONDS)
            return read_run(folder)

    def share_of_ideal(self, run: Run) -> float:
        """Speed of the second half / the hosts' summed speeds alone."""
        return BATCH / second_half_seconds(run) / sum(self.speeds.values())

    def _command(self, peer: str, folder: Path, names: Sequence[str]) -> list[str]:
        workload = ["-m", "hetero_hvd.bench.workload"]
        job = str(folder / "job.json")
        first = self._cluster[names[0]]
        if peer == "ddp":
            return [
                *first.enter(),
                *self._environment(0, names),
                sys.executable,
                *workload,
                peer,
                job,
            ]
        if peer == "horovod":
            hosts = ",".join(f"{self._cluster[name].address}:1" for name in names)
            launch = [str(Path(sys.executable).with_name("horovodrun")), "--gloo"]
            launch += ["-np", str(len(names)), "-H", hosts, "--network-interfaces", "eth0"]
            launch += ["--ssh-identity-file", str(first.identity_file)]
            return [*first.enter(), *launch, sys.executable, *workload, "horovod", job]
        self._write_nodes(folder / "nodes.yaml", peer, names)
        run = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml"), *RULES[peer]]
        run += ["--output", str(folder / "out"), "--", "python"]
        return [sys.executable, *run, *workload, "hetero", job]

    def _write_nodes(self, path: Path, peer: str, names: Sequence[str]) -> None:
        fastest = max(self.speeds.values(), default=1.0)
        nodes = []
        for name in names:
            hint = {"relative_speed": self.speeds[name] / fastest} if peer == "static" else {}
            environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            host = self._cluster[name]
            nodes.append(host.node(slots=1, devices=[], env=environment, **hint))
        path.write_text(json.dumps({"nodes": nodes}))

    def _environment(self, rank: int, names: Sequence[str]) -> list[str]:
        master = self._cluster[names[0]].address
        words = {"MASTER_ADDR": master, "MASTER_PORT": PORT, "RANK": rank, "WORLD_SIZE": len(names)}
        words |= {"GLOO_SOCKET_IFNAME": "eth0"}
        return ["env", *(f"{name}={value}" for name, value in words.items())]

    def _start_others(
        self, stack: ExitStack, folder: Path, names: Sequence[str], variables: dict[str, str]
    ) -> None:
        """The other ranks; as torchrun would start them on each host, without its agent."""
        for rank, name in enumerate(names[1:], 1):
            words = [*self._environment(rank, names), sys.executable, "-m"]
            words += ["hetero_hvd.bench.workload", "ddp", str(folder / "job.json")]
            process = subprocess.Popen([*self._cluster[name].enter(), *words], env=variables)
            stack.callback(process.wait)
            stack.callback(process.terminate)


def quota(effort: Effort, say: Say) -> Iterator[Table]:
    """Real CPU training under CPU quotas on three virtual hosts, under every peer."""
    if missing := missing_for_a_cluster():
        raise JobError(f"no virtual hosts: {missing}")
    runs: dict[str, list[Run]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(QUOTAS, folder=Path(place)))
        race = Race(cluster, say)
        race.measure_solo(effort.num_even_steps)
        for repeat in range(effort.repeats):
            for peer in PEERS:
                steps = effort.num_even_steps if peer in EVEN else effort.num_steps
                try:
                    run = race.run(peer, {"num_steps": steps})
                except JobError as error:
                    say(f"{peer} {repeat + 1} of {effort.repeats}: failed, {error}")
                    continue
                runs[peer].append(run)
                found = race.share_of_ideal(run)
                say(f"{peer} {repeat + 1} of {effort.repeats}: {found:.3f} of the ideal")
        yield _table(race, runs)


def _table(race: Race, runs: dict[str, list[Run]]) -> Table:
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in race.speeds.items())
    quotas = ", ".join(map(str, QUOTAS.values()))
    table = Table(
        title="Real training under CPU quotas on three hosts",
        text=f"Hosts in network namespaces with {quotas} % of a core; "
        f"alone they do {speeds} samples/s. Batch {BATCH}, a network of 0.5 million parameters, "
        "real compute. The reduction runs under the same quotas.",
        columns=("peer", "share of ideal, end to end, second half", "seconds per step"),
    )
    for peer, found in runs.items():
        shares = [race.share_of_ideal(run) for run in found]
        seconds = mean(second_half_seconds(run) for run in found)
        cells = (peer, f"{median(shares):.3f} ({spread(shares)})", f"{seconds:.3f}")
        table.rows.append(cells)
        table.bars[peer] = median(shares)
        table.measured[peer] = shares
    ours = table.bars.get("ours", 0.0)
    rest = max((share for peer, share in table.bars.items() if peer != "ours"), default=1.0)
    table.numbers.append(
        Number(
            quantity="ours / best other peer, second half: real training under CPU quotas",
            goal=">= 1",
            found=f"{ours / rest:.3f} (ours {ours:.3f})",
            is_reached=ours >= rest,
        )
    )
    return table
