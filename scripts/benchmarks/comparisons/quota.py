"""Real CPU training on three hosts of unequal speed: namespaces with CPU quotas and an sshd."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.numbers import Number
from benchmarks.peers import OUTPUT, RULES, Run, execute, read_run
from benchmarks.tables import (
    Effort,
    Say,
    Table,
    add_shares,
    ahead,
    median_of,
    second_half_seconds,
    take_turn,
)
from hetero_hvd.errors import JobError
from tests.kit.checkout import variables
from tests.kit.cpu_quota import set_quota
from tests.kit.virtual_cluster import VirtualCluster, missing_for_a_cluster, running_cluster

QUOTAS = {"fast": 70, "half": 35, "quarter": 18}
"""Percent of one core; of two cores they leave the driver and the system enough to keep them:
where their sum comes near two cores, what is measured is who is in whose way."""

GIVEN_UP, MOST_GIVEN_UP = 0.03, 0.15
"""The search for the best static split goes in such steps, and so far: see `Race.oracle`."""

ORACLE_GOAL = 0.98
BATCH, PORT = 5040, 29517
JOB = {"width": 512, "depth": 3, "steps_per_epoch": 40}
PEERS = ("ours", "uniform", "static", "lbb", "omnilearn", "horovod", "ddp")
"""Of each turn; then follows `oracle`, the best of all static splits that were tried."""

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training.

    Attributes:
        peer: Of `PEERS`.
        num_steps: So many.
        batch: Samples per step.
        names: Of its hosts.
        options: Further arguments of `Trainer`.
        given_up: `static` only: what each host's speed is taken for less, as a part of the fastest
            one's.
    """

    peer: str
    num_steps: int
    batch: int = BATCH
    names: Sequence[str] = tuple(QUOTAS)
    options: Mapping[str, Any] = field(default_factory=dict)
    given_up: float = 0.0


class Race:
    """Runs one peer after the other on the same hosts.

    Args:
        cluster: The hosts.
        quotas: Name to percent of one core.

    Attributes:
        speeds: Of each host by itself, samples per second, as measured last.
    """

    def __init__(self, cluster: VirtualCluster, quotas: Mapping[str, int]) -> None:
        self._cluster = cluster
        self._quotas = quotas
        self.speeds: dict[str, float] = {}

    def measure_solo(self, num_steps: int) -> None:
        """Every host trains by itself, at the share that its quota gives it.

        All at the same time: they share this machine's caches and cores with each other as they do
        when they train together, or the ideal would be that of a quieter machine.

        Raises:
            JobError: A run failed.
        """
        shares = {name: BATCH * quota // sum(QUOTAS.values()) for name, quota in QUOTAS.items()}
        runs = self.run(
            Entry(peer="uniform", num_steps=num_steps, batch=share, names=(name,))
            for name, share in shares.items()
        )
        pairs = zip(shares.items(), runs, strict=True)
        self.speeds = {name: share / second_half_seconds(run) for (name, share), run in pairs}

    def run(self, entries: Iterable[Entry]) -> list[Run]:
        """Train, all at the same time; one worker on every host.

        Quotas hold from the first step on: to start Python on 18 % of a core takes most of a
        minute, and is not what is measured.

        Raises:
            JobError: A run failed.
        """
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
            meeting = Path(place, "meeting")
            meeting.mkdir()
            self._set_quotas(dict.fromkeys(self._quotas, 100))
            runs = [pool.submit(self._run, entry, meeting) for entry in entries]
            try:
                while _num_files(meeting) < len(self._quotas) and not any(r.done() for r in runs):
                    time.sleep(0.05)
            finally:
                self._set_quotas(self._quotas)
                (meeting / "go").touch()
            return [run.result() for run in runs]

    def run_peer(self, peer: str, num_steps: int) -> Run:
        """Train on all hosts with one peer.

        Raises:
            JobError: The run failed.
        """
        (run,) = self.run([Entry(peer=peer, num_steps=num_steps)])
        return run

    def oracle(self, num_steps: int, first: Run, say: Say) -> Run:
        """The fastest run with a static split, by search from the one that follows the speeds.

        The reduction takes the same processor time on every host, in which one with a small quota
        computes fewer samples, but for a longer time: all give up the same number of samples.

        Args:
            num_steps: Of each run.
            first: By the speeds, as measured.
            say: For progress.

        Raises:
            JobError: A run failed.
        """
        runs = {0.0: first}
        for direction in (GIVEN_UP, -GIVEN_UP):
            best, given_up = min(map(second_half_seconds, runs.values())), direction
            while abs(given_up) <= MOST_GIVEN_UP:
                entry = Entry(peer="static", num_steps=num_steps, given_up=given_up)
                (runs[given_up],) = self.run([entry])
                say(f"static, {given_up:+.2f}: {self.share_of_ideal(runs[given_up]):.3f}")
                if second_half_seconds(runs[given_up]) >= best:
                    break
                best = second_half_seconds(runs[given_up])
                given_up += direction
            if len(runs) > 2:  # noqa: PLR2004 - it was better in this direction
                break
        return min(runs.values(), key=second_half_seconds)

    def share_of_ideal(self, run: Run) -> float:
        """Speed of the second half / the hosts' summed speeds alone."""
        return BATCH / second_half_seconds(run) / sum(self.speeds.values())

    def _set_quotas(self, quotas: Mapping[str, int]) -> None:
        for name, percent in quotas.items():
            set_quota(self._cluster[name].cgroup, percent=percent)

    def _run(self, entry: Entry, meeting: Path) -> Run:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            job: dict[str, Any] = JOB | {"options": dict(entry.options)}
            job |= {"num_steps": entry.num_steps, "global_batch_size": entry.batch}
            job |= {"out": str(folder / "record.json"), "meeting": str(meeting)}
            (folder / "job.json").write_text(json.dumps(job))
            environment = variables(OMP_NUM_THREADS="1")
            with ExitStack() as stack:
                if entry.peer == "ddp":
                    self._start_others(stack, folder, entry.names, environment)
                command = self._command(entry, folder)
                execute(command, folder, environment, TIMEOUT_SECONDS)
            return read_run(folder)

    def _command(self, entry: Entry, folder: Path) -> list[str]:
        peer, names = entry.peer, entry.names
        workload = ["-m", "benchmarks.workloads.training"]
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
        self._write_nodes(folder / "nodes.yaml", entry)
        run = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml"), *RULES[peer]]
        run += ["--output", str(folder / "out"), "--", "python"]
        return [sys.executable, *run, *workload, "hetero", job]

    def _write_nodes(self, path: Path, entry: Entry) -> None:
        nodes, hints = [], {}
        if entry.peer == "static":
            less = entry.given_up * max(self.speeds.values())
            hints = {name: speed - less for name, speed in self.speeds.items()}
        for name in entry.names:
            hint = {"relative_speed": hints[name] / max(hints.values())} if hints else {}
            host = self._cluster[name]
            nodes.append(host.node(slots=1, devices=[], env={"OMP_NUM_THREADS": "1"}, **hint))
        path.write_text(json.dumps({"nodes": nodes}))

    def _environment(self, rank: int, names: Sequence[str]) -> list[str]:
        master = self._cluster[names[0]].address
        words = {"MASTER_ADDR": master, "MASTER_PORT": PORT, "RANK": rank, "WORLD_SIZE": len(names)}
        words |= {"GLOO_SOCKET_IFNAME": "eth0"}
        return ["env", *(f"{name}={value}" for name, value in words.items())]

    def _start_others(
        self, stack: ExitStack, folder: Path, names: Sequence[str], environment: dict[str, str]
    ) -> None:
        """The other ranks; as torchrun would start them on each host, without its agent."""
        output = stack.enter_context((folder / OUTPUT).open("ab"))
        for rank, name in enumerate(names[1:], 1):
            words = [*self._environment(rank, names), sys.executable, "-m"]
            words += ["benchmarks.workloads.training", "ddp", str(folder / "job.json")]
            command = [*self._cluster[name].enter(), *words]
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.terminate)


def quota(effort: Effort, say: Say) -> Iterator[Table]:
    """Real CPU training under CPU quotas on three virtual hosts, under every peer."""
    if missing := missing_for_a_cluster():
        raise JobError(f"no virtual hosts: {missing}")
    turns: list[dict[str, float]] = []
    raw: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(QUOTAS, folder=Path(place)))
        race = Race(cluster, QUOTAS)
        for repeat in range(effort.repeats):
            try:
                race.measure_solo(effort.num_steps)
            except JobError as error:  # an accident must not cost the night's measurement
                say(f"no ideal, so no turn: {error}")
                continue
            told = ", ".join(f"{name} {speed:.0f}" for name, speed in race.speeds.items())
            say(f"samples/s, each by itself: {told}")
            runs = take_turn(repeat, PEERS, effort, say, race.run_peer, race.share_of_ideal)
            if "static" in runs:
                runs["oracle"] = race.oracle(effort.num_steps, runs["static"], say)
            turns.append({peer: race.share_of_ideal(run) for peer, run in runs.items()})
            raw += [_kept(len(turns), peer, run) for peer, run in runs.items()]
    if not turns:
        raise JobError("the hosts' own speeds could not be measured")
    yield _table(race.speeds, turns, raw)


def _num_files(folder: Path) -> int:
    return len(list(folder.iterdir()))


def _kept(turn: int, peer: str, run: Run) -> dict[str, Any]:
    """What explains a run that went badly: its steps, plans and each worker's busy seconds."""
    return {
        "turn": turn,
        "peer": peer,
        "step_seconds": run.step_seconds,
        "plans": [[step, *sizes] for step, sizes in zip(run.table_steps, run.shares, strict=True)],
        "busy_seconds": run.tables,
    }


def _table(
    speeds: Mapping[str, float],
    turns: Sequence[Mapping[str, float]],
    raw: Sequence[dict[str, Any]],
) -> Table:
    last = ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
    quotas = ", ".join(map(str, QUOTAS.values()))
    table = Table(
        title="Real training under CPU quotas on three hosts",
        text=f"Hosts in network namespaces with {quotas} % of a core from the first step on. Batch "
        f"{BATCH}, a network of 0.5 million parameters, real compute. The reduction runs under the "
        "same quotas. The ideal of each turn is what the hosts do in sum while all three train at "
        f"the same time, each by itself (in the last turn {last} samples/s). `oracle` is the best "
        "of the static splits that were tried in a turn, from that by speeds on as long as it got "
        "better; the luck of one of several runs is part of it. Ratios are taken within a turn.",
        columns=("peer", "share of ideal, end to end, second half", "ours / peer"),
        raw=list(raw),
    )
    table.rows = [(peer, *cells) for peer, cells in add_shares(table, turns).items()]
    table.numbers.append(ahead("real training under CPU quotas", turns))
    if gains := table.measured.get("ours / oracle"):
        table.numbers.append(
            Number(
                quantity="ours / best static split by search, second half: under CPU quotas",
                goal=f">= {ORACLE_GOAL:g}",
                found=median_of(gains),
                is_reached=median(gains) >= ORACLE_GOAL,
            )
        )
    return table
