"""Where a worker is lost that trains under somebody else's trainer: for such scripts."""

import json
import os
import signal
import sys
import time
from pathlib import Path

CASE = json.loads(sys.argv[1])
"""`trainings`: see the script; `faults`: at which place each worker meets one, and `how`;
`joining`: workers of nodes that are added when all faults have been met; `join_step`: from when on
all give those and the ones that were lost time to come; `num_workers`: how many there are then."""

WORKER = os.environ.get("HETERO_HVD_WORKER", "alone")


def kill():
    """End this process without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    """Stand still until somebody ends this process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail():
    """The user's mistake."""
    raise ArithmeticError("the user's mistake")


def out_of_memory():
    """As an allocation that fails."""
    raise MemoryError("no room")


def kill_when_kept():
    """The same as `kill`, once the job has a checkpoint."""
    deadline = time.monotonic() + 60
    while not any(Path("out", "checkpoints").glob("step-*/manifest.json")):
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.02)
    kill()


HOWS = {each.__name__: each for each in (kill, stop, fail, out_of_memory, kill_when_kept)}


def fault_at(place):
    """Meet this worker's fault, once, if it is to be met here."""
    mark = Path(f"fired-{WORKER}")
    if CASE.get("faults", {}).get(WORKER) == place and not mark.exists():
        mark.touch()
        HOWS[CASE.get("how", "kill")]()


def tell_that_it_is_back():
    """A worker that was lost, or that is new, is about to train."""
    if Path(f"fired-{WORKER}").exists() or WORKER in CASE.get("joining", ()):
        Path(f"back-{WORKER}").touch()


def give_time(step, world_size):
    """Wait until those that are missing are about to train, then be slow until they are in."""
    if step < CASE.get("join_step", float("inf")) or world_size == CASE["num_workers"]:
        return
    deadline = time.monotonic() + 100
    missing = [*CASE["faults"], *CASE.get("joining", ())]
    while not all(Path(f"back-{worker}").exists() for worker in missing):
        assert time.monotonic() < deadline, f"one of {missing} did not come"
        time.sleep(0.02)
    time.sleep(0.5)


def leave_result(results):
    """What this worker has found, for the test."""
    Path(f"result-{WORKER.replace(':', '-')}.json").write_text(json.dumps(results))
