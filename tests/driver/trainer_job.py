"""Jobs of scripts with somebody else's trainer: what they find, alone and as workers of a job.

The scripts take a JSON object, with the fields of `trainer_faults.CASE`; each process that comes
to the script's end leaves what it has found in result-WORKER.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

from hetero_hvd.run.records.reader import read_record
from tests.kit.fault_job import FaultJob

SPEEDS = {"alpha": 1.0, "beta": 0.5, "gamma": 0.5}
MISTAKE = "the user's mistake"


class Fault(NamedTuple):
    """What workers of a job meet in their first training, of 30 steps.

    Attributes:
        places: Of each worker that meets it.
        how: Name of a function of `trainer_faults`.
        says: What the job's console holds then.
    """

    places: dict[str, str]
    how: str = "kill"
    says: str = "was ended by SIGKILL"


FAULTS = {
    "before the first step": Fault({"beta:0": "loss 0"}),
    "two at once": Fault({"beta:0": "loss 7", "gamma:0": "loss 7"}),
    "the leader in its update": Fault({"alpha:0": "update 7"}),
    "in an evaluation": Fault({"gamma:0": "evaluate 12"}),
    "the leader in an evaluation": Fault({"alpha:0": "evaluate 12"}),
    "in a prediction after the training": Fault({"gamma:0": "predict 30"}),
    "one stands still": Fault({"beta:0": "loss 7"}, "stop"),
    "memory": Fault({"alpha:0": "loss 7"}, "out_of_memory", "no memory for 4 samples at once"),
    "an exception in the loss": Fault({"beta:0": "loss 7"}, "fail", MISTAKE),
    "an exception in an evaluation": Fault({"gamma:0": "evaluate 12"}, "fail", MISTAKE),
    "an exception while the leader writes": Fault({"alpha:0": "save 12"}, "fail", MISTAKE),
}


def run_alone(script, folder, **case):
    """What a process finds that no launcher has started."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, script, json.dumps(case)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "result-alone.json").read_text())


def run_job(script, folder, names, *trainings, hang_seconds=200, **faults):
    """What each worker of a job finds that has come to the script's end; and the job."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [
        {"name": name, "slots": 1, "devices": [], "relative_speed": SPEEDS[name]} for name in names
    ]
    command = [str(script), json.dumps({"trainings": trainings, **faults})]
    settings = {"rule": "static", "checkpoint_seconds": 0, "hang_timeout_seconds": hang_seconds}
    job = FaultJob(folder, nodes, settings=settings, command=command)
    code = job.wait(300)
    assert code == 0, job.console
    assert all((folder / f"fired-{worker}").exists() for worker in faults.get("faults", ()))
    assert job.summary()["replicas_equal"] is not False
    results = {file.stem: json.loads(file.read_text()) for file in folder.glob("result-*.json")}
    return results, job


def survive(script, folder, training, fault):
    """What the workers find that the fault does not end."""
    hang_seconds = 15 if fault.how == "stop" else 200
    faults = {"faults": fault.places, "how": fault.how}
    names = tuple(SPEEDS)
    results, job = run_job(script, folder, names, training, hang_seconds=hang_seconds, **faults)
    assert fault.says in job.console
    ended = fault.places if fault.how != "out_of_memory" else ()
    sound = results.keys() - {f"result-{worker.replace(':', '-')}" for worker in ended}
    assert len(sound) == len(names) - len(ended)
    return [results[name][0] for name in sound]


def record_of(folder):
    """The record of a folder's job."""
    return read_record(folder / "out")


def events_of(record, kind):
    """The events of a class, in order."""
    return [event for _, event in record.events if isinstance(event, kind)]
