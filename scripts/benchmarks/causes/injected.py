"""Causes of slowness, injected into real jobs: how often are they named right?"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.errors import JobError
from tests.kit.checkout import variables
from tests.kit.host_faults import MemoryGroup, slow_link, tighter_quota
from tests.kit.processes import end
from tests.kit.virtual_cluster import (
    VirtualCluster,
    missing_for_a_cluster,
    running_cluster,
)

GUILTY = "middle"
FAST = 0.0005
SPEEDS = {"fast": 1.0, GUILTY: 0.5, "slow": 0.21}
QUOTAS = {"fast": 50, GUILTY: 36, "slow": 12}
"""Percent of a core."""

LINK_RATE = "6mbit"
FILE_BYTES = 64 * 2**20
"""Of the samples that a host reads whose memory is to get small."""

NUM_ROUNDS = 9
"""Of all cases: more than 60 runs."""

MIN_TABLES = 16
"""Exchanges before the fault: the shares have settled and the workers are known."""

MAX_WAIT_SECONDS, QUIET_SECONDS, FAULT_SECONDS = 120.0, 4.0, 20.0
END_SECONDS = 30.0
MIN_IDLE_RATIO, MAX_DISTURBED = 0.1, 30
"""With less left of the processors' time, others may slow down who is well: no measurement."""

Fault = Callable[[], AbstractContextManager[None]]
RIGHT, WRONG, MISSED, FALSE = "right", "wrong", "missed", "false"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something that goes wrong, or nothing.

    Attributes:
        name: For people.
        kind: `data`, `compute`, `throttle`, `link`, `memory`, or `` for nothing.
        straggler: The cause to be named of the guilty worker; empty: nobody is a straggler.
        bound: What binds the run then; empty: not judged.
        is_real: Real compute under CPU quotas on hosts of their own; else emulated compute.
        has_hosts: On hosts of their own, for faults of network and quota.
        fault_seconds: How long to watch.
    """

    name: str
    kind: str = ""
    straggler: str = ""
    bound: str = ""
    is_real: bool = False
    has_hosts: bool = False
    fault_seconds: float = FAULT_SECONDS


CASES = (
    Case(name="slow data on one node", kind="data", straggler="input"),
    Case(name="one device at half its speed", kind="compute", straggler="compute"),
    Case(name="healthy devices at 1 : 0.5 : 0.21"),
    Case(name="a CPU quota cut to a third", kind="throttle", straggler="throttle", is_real=True),
    Case(name="a link of 6 Mbit/s", kind="link", bound="communication", has_hosts=True),
    Case(
        name="memory for a third of the samples",
        kind="memory",
        straggler="memory",
        has_hosts=True,
    ),
    Case(name="healthy hosts with quotas of 50, 36, 12 %", is_real=True),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run's verdict was worth.

    Attributes:
        grade: `right`, `wrong` (another cause), `missed` (nothing said), or `false` (somebody who
            was well was called a straggler).
        findings: What it said.
    """

    grade: str
    findings: tuple[dict[str, Any], ...]


def grade(case: Case, findings: tuple[dict[str, Any], ...]) -> Outcome:
    """Compare a run's final verdict with what was injected."""
    newest_last = [f for f in reversed(findings) if f["kind"] == "straggler"]
    slow = {f["worker"][0]: f["cause"] for f in newest_last}
    bound = next((f["kind"] for f in findings if f["kind"] not in ("straggler", "imbalance")), "")
    expected = GUILTY if case.straggler else None
    if slow.keys() - {expected}:
        return Outcome(grade=FALSE, findings=findings)
    said = slow.get(GUILTY, "") if case.straggler else bound if case.bound else ""
    right = case.straggler or case.bound
    if said == right:
        return Outcome(grade=RIGHT, findings=findings)
    return Outcome(grade=MISSED if not said else WRONG, findings=findings)


def run_case(
    case: Case, folder: Path, cluster: VirtualCluster | None = None, *, is_hasty: bool = False
) -> Outcome:
    """Run a job, inject the fault when all is settled, and judge what it says at its end.

    Args:
        case: What to inject.
        folder: An empty one.
        cluster: Its hosts, for a case that needs some.
        is_hasty: End when the expected cause has been named, without a quiet time before the fault.

    Raises:
        JobError: The job did not run as it should.
    """
    mark = folder / "fault"
    nodes = _nodes(case, cluster)
    (folder / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    script = {
        "global_batch_size": 6000 if case.is_real else 240,
        "width": 512 if case.is_real else 256,  # compute, not its reduction, is to fill the quota
        "node": GUILTY,
        "kind": case.kind,
        "ratio": 2.0,
        "data_seconds_per_sample": FAST / SPEEDS[GUILTY],
        "mark": str(mark),
        "file_bytes": FILE_BYTES,
    }
    with _prepared(case, cluster) as fault, running_job(folder, script) as job:
        wait_for(folder / "out" / "timings.jsonl", "StepsTimed", job, times=MIN_TABLES)
        watch(job, 0.0 if is_hasty else QUIET_SECONDS)
        with fault():  # also where it is the script that acts
            mark.touch()
            if is_hasty:
                wait_for(folder / "console.txt", f"({case.straggler}: ", job)
            else:
                watch(job, case.fault_seconds)
    found = json.loads((folder / "out" / "summary.json").read_text())["verdict"]
    return grade(case, tuple(found))


def _nodes(case: Case, cluster: VirtualCluster | None) -> list[dict[str, object]]:
    nodes: list[dict[str, object]] = []
    for name, speed in SPEEDS.items():
        emulate = {"seconds_per_sample": FAST / speed, "overhead_seconds": 0.004}
        more = {} if case.is_real else {"emulate": emulate}
        entry: dict[str, object] = {"slots": 1, "devices": [], **more}
        environment = {"OMP_NUM_THREADS": "1"}
        if cluster is None:
            nodes.append({"name": name, "env": environment, **entry})
        else:
            nodes.append(cluster[name].node(env=environment, **entry))
    return nodes


@contextmanager
def running_job(
    folder: Path, script: Mapping[str, object], *, module: str = "benchmarks.causes.injected_script"
) -> Iterator[subprocess.Popen[bytes]]:
    """A running job; it is ended and has written its summary when the block is left.

    Args:
        folder: With its nodes.yaml; gets `out` and console.txt.
        script: Its only argument, as JSON.
        module: The script.
    """
    command = [sys.executable, "-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml")]
    command += ["--output", str(folder / "out"), "--start-timeout-seconds", "180", "--"]
    command += ["python", "-m", module, json.dumps(script)]
    with (folder / "console.txt").open("wb") as console:
        job = subprocess.Popen(
            command, env=variables(), stdout=console, stderr=console, start_new_session=True
        )
        try:
            yield job
        finally:
            end(job, END_SECONDS)


def wait_for(file: Path, text: str, job: subprocess.Popen[bytes], *, times: int = 1) -> None:
    """Until a file of the job shows a text so many times."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while not file.exists() or file.read_bytes().count(text.encode()) < times:
        if job.poll() is not None or time.monotonic() > deadline:
            console = (file.parent / "console.txt", file.parent.parent / "console.txt")
            shown = "".join(p.read_text(errors="replace")[-1500:] for p in console if p.exists())
            raise JobError(f"no {text!r} in {file.name}: {shown}")
        time.sleep(0.1)


def watch(job: subprocess.Popen[bytes], seconds: float) -> None:
    """Let it run for so long."""
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise JobError(f"the job ended by itself with exit code {job.returncode}")


@contextmanager
def _prepared(case: Case, cluster: VirtualCluster | None) -> Iterator[Fault]:
    """What the harness will do to a host; all else the script does itself."""
    if cluster is not None and case.kind == "throttle":
        yield lambda: tighter_quota(cluster[GUILTY], divisor=3)
    elif cluster is not None and case.kind == "link":
        yield lambda: slow_link(cluster[GUILTY], rate=LINK_RATE)
    elif cluster is not None and case.kind == "memory":
        group = MemoryGroup(cluster[GUILTY])
        try:
            yield lambda: group.too_small(FILE_BYTES // 3)
        finally:
            group.close()
    else:
        yield nullcontext


def causes(effort: Effort, say: Say) -> Iterator[Table]:
    """Right, wrong, missed and false verdicts about injected causes."""
    if missing := missing_for_a_cluster():
        raise JobError(f"no virtual hosts: {missing}")
    grades: dict[str, list[str]] = {case.name: [] for case in CASES}
    num_disturbed = 0
    for repeat in range(NUM_ROUNDS if effort.repeats > 1 else 1):
        for case in CASES:
            outcome, idle_ratio = _run_alone(case)
            while idle_ratio < MIN_IDLE_RATIO:
                num_disturbed += 1
                say(f"{case.name}: disturbed, {idle_ratio:.0%} idle; it was {outcome.grade}")
                if num_disturbed > MAX_DISTURBED:
                    raise JobError(f"others use this machine: {MAX_DISTURBED} runs were disturbed")
                outcome, idle_ratio = _run_alone(case)
            grades[case.name].append(outcome.grade)
            said = "; ".join(f["words"] for f in outcome.findings if f["is_complete"])
            say(f"{repeat + 1}: {case.name}: {outcome.grade}: {said}")
    yield _table(grades, num_disturbed)


def _run_alone(case: Case) -> tuple[Outcome, float]:
    """Its outcome, and the part of all processors' time in which nobody used them."""
    before = psutil.cpu_times()
    with tempfile.TemporaryDirectory(prefix="hetero-hvd-causes-") as place:
        folder = Path(place)
        (folder / "run").mkdir()
        if not (case.is_real or case.has_hosts):
            outcome = run_case(case, folder / "run")
        else:
            quotas = QUOTAS if case.is_real else dict.fromkeys(QUOTAS, 100)
            (folder / "hosts").mkdir()
            with running_cluster(quotas, folder=folder / "hosts") as cluster:
                outcome = run_case(case, folder / "run", cluster)
    after = psutil.cpu_times()
    idle = after.idle - before.idle + after.iowait - before.iowait
    return outcome, idle / max(1e-9, sum(after) - sum(before))


def _table(grades: Mapping[str, list[str]], num_disturbed: int) -> Table:
    counts = {name: Counter(found) for name, found in grades.items()}
    table = Table(
        title="Injected causes",
        text="Real jobs of three workers at 1 : 0.5 : 0.21 of speed; once the shares have settled "
        f"one of them is slowed down, and {FAULT_SECONDS:g} s later its verdict is read. False: "
        "somebody who was well was called a straggler. Where less than "
        f"{MIN_IDLE_RATIO:.0%} of the processors' time was left, others disturbed the run, and it "
        f"was done again: {num_disturbed} times.",
        columns=("what was done", "runs", RIGHT, WRONG, MISSED, FALSE),
    )
    for name, found in counts.items():
        cells = [str(found[grade]) for grade in (RIGHT, WRONG, MISSED, FALSE)]
        table.rows.append((name, str(found.total()), *cells))
    total = sum(counts.values(), Counter())
    runs, right, false = total.total(), total[RIGHT], total[FALSE]
    table.numbers = [
        Number(
            quantity="injected causes named right",
            goal=">= 95 % of 60 runs",
            found=f"{right} of {runs}",
            is_reached=right >= 0.95 * runs,
        ),
        Number(
            quantity="false stragglers",
            goal="0",
            found=f"{false} of {runs} runs",
            is_reached=false == 0,
        ),
    ]
    return table
