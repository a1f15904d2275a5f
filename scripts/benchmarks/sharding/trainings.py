"""One training, of one worker in each control group."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.faults.oom import ALLOCATOR
from benchmarks.peers import OUTPUT, execute, horovodrun
from benchmarks.sharding.control_groups import WorkerGroups
from benchmarks.sharding.jobs import DeepJob, DeepResult
from hetero_hvd.errors import JobError
from tests.kit.checkout import variables

TIMEOUT_SECONDS = 240.0
REFUSED = "shard_optimizer: "


class Outcome(msgspec.Struct, frozen=True):
    """What became of a run.

    Attributes:
        words: `trained`, `killed`, `out of memory` or `refused`.
        results: Of each rank, if it has trained.
        peaks: The most memory of each rank's group, bytes, caches included.
    """

    words: str
    results: list[DeepResult]
    peaks: list[int]


def step_seconds(result: DeepResult) -> float:
    """The median of a run's second half."""
    return median(result.step_seconds[len(result.step_seconds) // 2 :])


def trained(groups: WorkerGroups, job: DeepJob) -> list[DeepResult]:
    """What each rank found.

    Raises:
        JobError: They have not trained.
    """
    outcome = run(groups, job)
    if outcome.words != "trained":
        raise JobError(f"{job}: {outcome.words}")
    return outcome.results


def run(groups: WorkerGroups, job: DeepJob) -> Outcome:
    """One training, of one worker in each group.

    Raises:
        JobError: It failed, and not for want of memory.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        python = groups.interpreter(folder / "python")
        num_killed = groups.num_killed()
        groups.start_peaks()
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **ALLOCATOR}
        balance = {"HETERO_HVD_BALANCE": "true" if job.balances else "false"}
        command = _command(job, python, groups.num_workers)
        words = "trained"
        try:
            execute([*command, str(folder)], folder, variables(**own, **balance), TIMEOUT_SECONDS)
        except JobError:
            output = (folder / OUTPUT).read_text(errors="replace")
            words = _why_not(output, is_killed=groups.num_killed() > num_killed)
            if not words:
                raise
        ranks = range(groups.num_workers)
        peaks = [groups.peak_bytes(rank) for rank in ranks]
        results = [
            msgspec.json.decode((folder / f"rank-{rank}.json").read_bytes(), type=DeepResult)
            for rank in ranks
            if words == "trained"
        ]
        return Outcome(words, results, peaks)


def _command(job: DeepJob, python: str, num_workers: int) -> list[str]:
    if not job.schedule:
        return [*horovodrun(num_workers)[:-1], python, "-m", "benchmarks.sharding.deep"]
    launch = str(Path(sys.executable).with_name("torchrun"))
    options = ["--standalone", "--nproc-per-node", str(num_workers), "--no-python"]
    return [launch, *options, python, "-m", "benchmarks.sharding.pipelined"]


def _why_not(output: str, *, is_killed: bool) -> str:
    """Which want of memory it was; empty: another failure."""
    if is_killed:
        return "killed"
    if REFUSED in output:
        return "refused"
    return "out of memory" if "out of memory" in output.lower() else ""
