"""How long the survivors of a fault stand still: `python -m benchmarks.faults`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.faults import peers
from tests.kit.fault_job import NODE_NAMES, FaultJob, in_words

Case = Callable[[Path, int], float]
FAULT_STEP, LAST_EPOCH = 30, 12
SMALL_CHUNKS = {"wait_free": True, "micro_batch_size": 4}
LARGE = 50_000_000
"""Parameters, which with their momentum are 0.4 GB."""


def run_job(
    folder: Path,
    num_workers: int,
    faults: list[dict[str, Any]],
    epochs: int = LAST_EPOCH,
    **more: Any,  # noqa: ANN401 - fields of the script
) -> FaultJob:
    """A job with these faults, which has ended well."""
    job = FaultJob(
        folder,
        NODE_NAMES[:num_workers],
        settings={"max_restarts": 0, "gloo_timeout_seconds": 30},
        faults=faults,
        epochs=epochs,
        **more,
    )
    code = job.wait(120)
    if code:
        raise RuntimeError(f"exit code {code}:\n{job.console}")
    return job


def kill(folder: Path, num_workers: int, ballast: int = 0) -> float:
    """Kill -9 of one worker."""
    fault = {"worker": f"{NODE_NAMES[1]}:0", "step": FAULT_STEP, "kind": "kill"}
    return run_job(folder, num_workers, [fault], ballast=ballast).recovery_seconds()


def kill_large(folder: Path, num_workers: int) -> float:
    """The same with 10 million parameters."""
    return kill(folder, num_workers, ballast=10_000_000)


def kill_two(folder: Path, num_workers: int) -> float:
    """Kill -9 of another worker 0.1 s after the first; from the second on."""
    first = {"worker": f"{NODE_NAMES[1]}:0", "step": FAULT_STEP, "kind": "kill"}
    second = {
        "worker": f"{NODE_NAMES[2]}:0",
        "kind": "kill",
        "after_fault": 0,
        "delay_seconds": 0.1,
    }
    return run_job(folder, num_workers, [first, second]).recovery_seconds(1)


def stop(folder: Path, num_workers: int) -> float:
    """SIGSTOP of one worker, default heartbeat."""
    fault = {"worker": f"{NODE_NAMES[1]}:0", "step": FAULT_STEP, "kind": "stop"}
    return run_job(folder, num_workers, [fault]).recovery_seconds()


def joined(folder: Path, num_workers: int, ballast: int = 0) -> tuple[float, float]:
    """A restarted worker joins.

    Returns:
        From the last step without it to the first one with it, which is all of that step too; and
        what a later step with it takes, median. Seconds.
    """
    fault = {"worker": f"{NODE_NAMES[1]}:0", "step": FAULT_STEP, "kind": "kill"}
    job = FaultJob(
        folder,
        NODE_NAMES[:num_workers],
        faults=[fault],
        epochs=300,
        settings={"max_restarts": 3},
        ballast=ballast,
    )
    try:
        job.wait_for(f"{num_workers} workers train together", 60, times=2)
        step = max(line[1] for line in job.trace())
        job.wait_for_step(int(step) + 20)
    finally:
        job.close()
    lines = job.trace()
    full = next(
        i
        for i, line in enumerate(lines)
        if line[3] == num_workers and lines[i - 1][3] < num_workers and i
    )
    firsts: dict[float, float] = {}
    for at, step, *_ in lines[full:]:
        firsts.setdefault(step, at)
    steps = [later - earlier for earlier, later in pairwise(firsts.values())]
    return lines[full][0] - lines[full - 1][0], median(steps)


def join(folder: Path, num_workers: int) -> float:
    """A restarted worker joins: from the last step without it to the first one with it."""
    return joined(folder, num_workers)[0]


def join_large(folder: Path, num_workers: int) -> float:
    """The same with 50 million parameters and their momentum."""
    return joined(folder, num_workers, LARGE)[0]


def pause(folder: Path, num_workers: int) -> float:
    """Batches that kill -9 of one costs the others in wait-free rounds, at their own pace."""
    return kill_in_rounds(folder, num_workers).lost_steps()


def pause_long(folder: Path, num_workers: int) -> float:
    """The same where a step takes 100 ms: eight chunks of 12.5 ms each."""
    options = {"wait_free": True, "micro_batch_size": 2}
    job = kill_in_rounds(folder, num_workers, options, step_seconds=0.0125, epochs=8)
    return job.lost_steps()


def again(folder: Path, num_workers: int) -> float:
    """Batches that are computed in vain then; beside others on the machine, too, this is exact."""
    return kill_in_rounds(folder, num_workers).computed_again()


def kill_in_rounds(
    folder: Path,
    num_workers: int,
    options: Mapping[str, Any] = SMALL_CHUNKS,
    *,
    step_seconds: float = 0.005,
    epochs: int = LAST_EPOCH,
) -> FaultJob:
    """Kill -9 of one worker in wait-free rounds; each sample was used once in each epoch."""
    fault = {"worker": f"{NODE_NAMES[1]}:0", "step": FAULT_STEP, "kind": "kill"}
    more = {"step_seconds": step_seconds, "options": options}
    job = run_job(folder, num_workers, [fault], epochs, **more)
    counts = [result["times_used"] for result in job.results()]
    if counts != [[epochs, epochs]] * (num_workers - 1):
        raise RuntimeError(f"samples were lost or repeated: {counts}\n{job.console}")
    return job


def kill_horovod(folder: Path, num_workers: int) -> float:
    """Kill -9 of one worker of a job of `horovodrun`, elastic."""
    return peers.kill("horovod", folder, num_workers)


def kill_torchrun(folder: Path, num_workers: int) -> float:
    """Kill -9 of one worker of a job of `torchrun --max-restarts`."""
    return peers.kill("ddp", folder, num_workers)


CASES: dict[str, Case] = {
    "kill": kill,
    "kill_large": kill_large,
    "kill_two": kill_two,
    "stop": stop,
    "join": join,
    "join_large": join_large,
    "pause": pause,
    "pause_long": pause_long,
    "again": again,
    "kill_horovod": kill_horovod,
    "kill_torchrun": kill_torchrun,
}


def main() -> int:
    """Repeat the cases that were asked for, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES], help=", ".join(CASES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.cases if name not in CASES]:
        parser.error(f"{unknown[0]}: must be of {', '.join(CASES)}")
    for name in arguments.cases:
        seconds = []
        for _ in range(arguments.repeat):
            with tempfile.TemporaryDirectory(prefix="hetero-hvd-faults-") as folder:
                seconds.append(CASES[name](Path(folder), arguments.workers))
        line = f"{name} of {arguments.workers} workers: {in_words(seconds)}"
        sys.stdout.write(f"{line}  {[round(s, 2) for s in seconds]}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
