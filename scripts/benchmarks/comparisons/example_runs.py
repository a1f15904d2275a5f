"""Runs the examples on unequal workers: emulated ones, and hosts with CPU quotas."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import RULES, Run, execute, read_run
from benchmarks.workloads.example_data import WRITERS
from tests.kit.checkout import variables
from tests.kit.cpu_quota import set_quota
from tests.kit.virtual_cluster import running_cluster

BATCH = 56
"""Samples of all workers in a batch: 32, 16 and 8 at 1 : 0.5 : 0.25."""

SPEEDS = (1.0, 0.5, 0.25)
PRICES = (1.0, 0.6, 0.35)
"""Of an hour of each node, in any currency: the slow ones are cheaper, but not by as much."""

SECONDS_PER_SAMPLE, OVERHEAD_SECONDS = 0.004, 0.004
QUOTAS = {"fast": 72, "half": 36, "quarter": 18}
"""Percent of one core; of two cores they leave the driver and the system enough to keep them."""

MOST_OVERRUN = 1.1
"""Of the emulated time, as the most that the compute within it may take: else its own speed, and
not the emulated one, is what a run shows, and a machine that others use has taken it."""

TIMEOUT_SECONDS = 1500.0
"""Of a run of all ways; on a busy machine a ResNet's took more than 400."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A script of docs/examples in a small size.

    Attributes:
        script: Its name.
        title: Of the model.
        flags: What is the same everywhere.
        small: Flags where the compute is emulated: it must fit into the emulated time.
        large: Flags where it is real: it must be what takes the time.
    """

    script: str
    title: str
    flags: str
    small: str
    large: str


EXAMPLES = (
    Example(
        script="resnet",
        title="ResNet",
        flags="--depths 1 1 1 1 --epochs 1 --lr 0.02",
        small="--width 8 --pixels 32",
        large="--width 12 --pixels 64",
    ),
    Example(
        script="gpt2",
        title="GPT-2",
        flags="--layers 2 --block 48 --lr 3e-3",
        small="--heads 2 --width 64",
        large="--heads 4 --width 128",
    ),
    Example(
        script="bert",
        title="BERT",
        flags="--epochs 1 --lr 3e-3 --length 16",
        small="--layers 2 --heads 2 --width 32",
        large="--layers 4 --heads 2 --width 64",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the examples run.

    Attributes:
        title: In headings.
        about: In a sentence.
        is_real: Whether the compute takes the time that it takes.
        nodes: Entries of nodes.yaml, with their true speeds.
        limit: Sets the nodes' limits (True) or lifts them while the programs start (False).
    """

    title: str
    about: str
    is_real: bool
    nodes: Sequence[Mapping[str, Any]]
    limit: Callable[[bool], None]

    def flags(self, example: Example) -> list[str]:
        """The example's words here."""
        own = example.large if self.is_real else example.small
        return [*example.flags.split(), *own.split(), "--batch-size", str(BATCH)]

    def nodes_of(self, peer: str) -> list[dict[str, Any]]:
        """Those of nodes.yaml; the static split alone knows the speeds."""
        hidden = set() if peer == "static" else {"relative_speed"}
        return [{k: v for k, v in node.items() if k not in hidden} for node in self.nodes]

    def overrun(self, run: Run) -> float:
        """How many times its emulated time a worker's compute has taken: that of the worst one.

        In the second half of the run; not above 1 where it fits, and 0 where nothing is emulated.
        """
        settled = run.timings[len(run.timings) // 2 :]
        found = [0.0]
        for number, node in enumerate(self.nodes):
            rows = [rows[number] for rows in settled if rows[number]["local_batch_size"]]
            if "emulate" in node and rows:
                found.append(median(_compute_seconds(r) / _given_seconds(node, r) for r in rows))
        return max(found)

    def run(
        self, example: Example, ways: Mapping[str, Any], num_samples: int, peer: str
    ) -> tuple[dict[str, dict[str, Any]], Run]:
        """Train in several ways, one after the other in the same processes.

        Limits hold from the first step on: to start Python on 18 % of a core takes a minute.

        Args:
            example: Which.
            ways: Name to the fields of `workloads.examples.Way`.
            num_samples: Of an epoch.
            peer: A key of `RULES`.

        Returns:
            Name of a way to the fields of `workloads.examples.Seen`; and what the driver wrote.

        Raises:
            JobError: It failed.
        """
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(1) as pool:
            folder = Path(place)
            meeting = folder / "meeting"
            meeting.mkdir()
            WRITERS[example.script](folder / "data", num_samples)
            job = {"example": example.script, "flags": self.flags(example), "ways": ways}
            job |= {"meeting": str(meeting)}
            (folder / "job.json").write_text(json.dumps(job))
            (folder / "nodes.yaml").write_text(json.dumps({"nodes": self.nodes_of(peer)}))
            own = variables(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
            self.limit(False)
            running = pool.submit(execute, _command(folder, peer), folder, own, TIMEOUT_SECONDS)
            try:
                while len(list(meeting.iterdir())) < len(self.nodes) and not running.done():
                    time.sleep(0.05)
            finally:
                self.limit(True)
                (meeting / "go").touch()
            running.result()
            found: dict[str, dict[str, Any]] = json.loads((folder / "result.json").read_text())
            first = next(iter(found.values()))
            (folder / "record.json").write_text(json.dumps(first | {"accuracies": []}))
            return found, read_run(folder)


def _compute_seconds(row: Mapping[str, Any]) -> float:
    """Of a worker, what its emulated time holds."""
    phases = ("transfer", "forward", "backward")
    seconds: float = sum(row[f"{phase}_seconds"] or 0.0 for phase in phases)
    return seconds


def _given_seconds(node: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """The emulated time of a worker's part."""
    given = node["emulate"]
    seconds: float = given["seconds_per_sample"] * row["local_batch_size"]
    return seconds + float(given["overhead_seconds"])


def _command(folder: Path, peer: str) -> list[str]:
    run = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml"), *RULES[peer]]
    run += ["--no-remember", "--output", str(folder / "out"), "--", "python", "-m"]
    return [sys.executable, *run, "benchmarks.workloads.examples", str(folder)]


def emulated() -> Place:
    """Workers of this machine whose steps take a given time: two cores are enough for three."""
    nodes = [
        {
            "name": f"n{number}",
            "slots": 1,
            "devices": [],
            "price_per_hour": price,
            "relative_speed": speed,
            "emulate": {
                "seconds_per_sample": SECONDS_PER_SAMPLE / speed,
                "overhead_seconds": OVERHEAD_SECONDS,
            },
        }
        for number, (speed, price) in enumerate(zip(SPEEDS, PRICES, strict=True))
    ]
    step_seconds = OVERHEAD_SECONDS + SECONDS_PER_SAMPLE * BATCH / sum(SPEEDS)
    about = (
        f"Three emulated workers at {' : '.join(f'{s:g}' for s in SPEEDS)}, whose part of a batch "
        f"of {BATCH} takes {step_seconds * 1e3:.0f} ms by a deadline where the division is right. "
        "What is computed faster or slower within that time changes nothing here; where the "
        f"compute takes more than {MOST_OVERRUN:g} times as long, a division of the batch has no "
        "figure"
    )
    return Place(
        title="emulated workers", about=about, is_real=False, nodes=nodes, limit=lambda _: None
    )


@contextmanager
def hosts_with_quotas() -> Iterator[Place]:
    """Hosts in network namespaces, each with a part of a core.

    Raises:
        OSError: They cannot be made here; `missing_for_a_cluster` says so before.
    """
    fastest = max(QUOTAS.values())
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(QUOTAS, folder=Path(folder)) as cluster,
    ):
        nodes = [
            cluster[name].node(
                slots=1,
                devices=[],
                price_per_hour=price,
                relative_speed=percent / fastest,
                env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
            for (name, percent), price in zip(QUOTAS.items(), PRICES, strict=True)
        ]

        def limit(is_on: bool) -> None:
            for name, percent in QUOTAS.items():
                set_quota(cluster[name].cgroup, percent=percent if is_on else 100)

        quotas = ", ".join(map(str, QUOTAS.values()))
        about = (
            f"Three hosts in network namespaces with {quotas} % of a core, real compute; these "
            f"quotas are the true speeds. A batch has {BATCH} samples"
        )
        yield Place(title="unequal CPUs", about=about, is_real=True, nodes=nodes, limit=limit)
