"""Real CPU training on three hosts of unequal speed: namespaces with CPU quotas and an sshd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
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

    Attributes:
        speeds: Of each host by itself, samples per second, as measured last.
    """

    def __init__(self, cluster: VirtualCluster, say: Say) -> None:
        self._cluster = cluster
        self._say = say
        self.speeds: dict[str, float] = {}

    def measure_solo(self, num_steps: int) -> None:
        """Every host trains by itself, at the share that its quota gives it.

        All at the same time: they share this machine's caches and cores with each other as they do
        when they train together, or the ideal would be that of a quieter machine.
        """
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(len(QUOTAS)) as pool:
            alone = partial(self._alone, num_steps, Path(place))
            self.speeds = dict(zip(QUOTAS, pool.map(alone, QUOTAS), strict=True))
        told = ", ".join(f"{name} {speed:.0f}" for name, speed in self.speeds.items())
        self._say(f"samples/s, each by itself: {told}")

    def _alone(self, num_steps: int, place: Path, name: str) -> float:
        share = BATCH * QUOTAS[name] // sum(QUOTAS.values())
        others = [str(place / other) for other in QUOTAS if other != name]
        job = {"num_steps": num_steps, "global_batch_size": share}
        run = self.run("uniform", job | {"meeting": [str(place / name), *others]}, (name,))
        return share / second_half_seconds(run)

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
    turns: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(QUOTAS, folder=Path(place)))
        race = Race(cluster, say)
        for repeat in range(effort.repeats):
            race.measure_solo(effort.num_steps)
            turns.append({})
            for peer in PEERS:
                steps = effort.num_even_steps if peer in EVEN else effort.num_steps
                try:
                    run = race.run(peer, {"num_steps": steps})
                except JobError as error:
                    say(f"{peer} {repeat + 1} of {effort.repeats}: failed, {error}")
                    continue
                turns[-1][peer] = race.share_of_ideal(run)
                say(f"{peer} {repeat + 1} of {effort.repeats}: {turns[-1][peer]:.3f} of the ideal")
    yield _table(race.speeds, turns)


def _table(speeds: Mapping[str, float], turns: Sequence[Mapping[str, float]]) -> Table:
    last = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
    quotas = ", ".join(map(str, QUOTAS.values()))
    table = Table(
        title="Real training under CPU quotas on three hosts",
        text=f"Hosts in network namespaces with {quotas} % of a core. Batch {BATCH}, a network of "
        "0.5 million parameters, real compute. The reduction runs under the same quotas. The ideal "
        "of each turn is what the hosts do in sum while all three train at the same time, each by "
        f"itself (in the last turn {last} samples/s). Ratios are taken within a turn.",
        columns=("peer", "share of ideal, end to end, second half", "ours / peer"),
    )
    ratios = {peer: found for peer in PEERS[1:] if (found := _ratios(turns, peer))}
    for peer in PEERS:
        shares = [turn[peer] for turn in turns if peer in turn]
        if not shares:
            continue
        table.bars[peer] = median(shares)
        table.measured[peer] = shares
        told = ""
        if peer in ratios:
            told = f"{median(ratios[peer]):.3f} ({spread(ratios[peer])})"
            table.measured[f"ours / {peer}"] = ratios[peer]
        table.rows.append((peer, f"{median(shares):.3f} ({spread(shares)})", told))
    closest = min(ratios.values(), key=median, default=[])
    table.numbers.append(
        Number(
            quantity="ours / best other peer, second half: real training under CPU quotas",
            goal=">= 1",
            found=f"{median(closest):.3f} ({spread(closest)})" if closest else "no peer ran",
            is_reached=bool(closest) and median(closest) >= 1,
        )
    )
    return table


def _ratios(turns: Sequence[Mapping[str, float]], peer: str) -> list[float]:
    return [turn["ours"] / turn[peer] for turn in turns if {"ours", peer} <= turn.keys()]
