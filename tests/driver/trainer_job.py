"""Jobs of scripts with somebody else's trainer: what they find, alone and as workers of a job.

The scripts take a JSON object, with the fields of `trainer_faults.CASE`; each process that comes
to the script's end leaves what it has found in result-WORKER.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

from hetero_hvd.messages import BatchPlan, Recovered, StateDivided
from hetero_hvd.run.records.reader import read_record
from tests.kit.checkout import PACKAGES
from tests.kit.fault_job import FaultJob, write_nodes
from tests.leftovers import wait_until

SPEEDS = {"alpha": 1.0, "beta": 0.5, "gamma": 0.5, "delta": 0.5}
THREE = ("alpha", "beta", "gamma")
AS_OUT = ("--output", "out")
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


IN_PARTS_FAULTS = {
    "one in a step": Fault({"beta:0": "loss 7"}),
    "one in its update": Fault({"gamma:0": "update 7"}),
    "the leader in its update": Fault({"alpha:0": "update 7"}),
    "the leader in an evaluation": Fault({"alpha:0": "evaluate 12"}),
    "two, one after the other": Fault({"beta:0": "loss 7", "gamma:0": "loss 20"}),
}


def run_alone(script, folder, **case):
    """What a process finds that no launcher has started.

    It has all of the libraries, as outside of the tests (see tests/without_compiler).
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, script, json.dumps(case)]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
    done = subprocess.run(
        command, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "result-alone.json").read_text())


def run_job(
    script, folder, names, *trainings, settings=None, joining=(), has_own_folders=False, **faults
):
    """What each worker of a job finds that has come to the script's end; and the job.

    Where all workers have folders of their own, none sees what another one writes.
    """
    settings = {"checkpoint_seconds": 0, "hang_timeout_seconds": 200, **(settings or {})}
    case = {"trainings": trainings, **elastic_case(names, joining), **faults}
    command = [str(script), json.dumps(case)]
    lost = tuple(faults.get("faults", ()))
    roots = {name: folder / f"of-{name}" for name in names} if has_own_folders else {}
    job = run_command(folder, names, command, lost=lost, joining=joining, roots=roots, **settings)
    files = folder.glob("**/result-*.json")
    results = {file.stem: json.loads(file.read_text()) for file in files}
    return results, job


def elastic_case(names, joining):
    """Fields of `trainer_faults.CASE`: who comes to these nodes, and how many there are then."""
    workers = [f"{name}:0" for name in joining]
    return {"joining": workers, "num_workers": len(names) + len(joining)}


def run_command(
    folder, names, command, *, lost=(), joining=(), roots=None, arguments=AS_OUT, **settings
):
    """A job of unequal workers that has ended well.

    Args:
        folder: For everything.
        names: Its nodes, of `SPEEDS`.
        command: The script and its arguments.
        lost: Workers that meet a fault of `trainer_faults`.
        joining: Nodes that are added when all have met theirs.
        roots: Name to folder of nodes whose workers have another one.
        arguments: Those of `hetero-hvd run`; the second one is the run's folder.
        settings: Of the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"rule": "static"} | settings
    nodes = entries(names, roots)
    job = FaultJob(folder, nodes, arguments=arguments, settings=settings, command=command)
    try:
        if joining:
            marks = [folder / f"fired-{worker}" for worker in lost]
            wait_until(lambda: all(mark.exists() for mark in marks), 200, f"faults of {lost}")
            write_nodes(job.nodes_file, entries((*names, *joining)), **settings)
    finally:
        code = job.wait(300)
    assert code == 0, job.console
    assert all((folder / f"fired-{worker}").exists() for worker in lost)
    summary = json.loads((folder / arguments[1] / "summary.json").read_text())
    assert summary["replicas_equal"] is not False
    return job


def entries(names, roots=None):
    """Nodes of one slot each, of unequal speeds."""
    found = []
    for name in names:
        found.append({"name": name, "slots": 1, "devices": [], "relative_speed": SPEEDS[name]})
        if name in (roots or {}):
            roots[name].mkdir()
            found[-1]["directory"] = str(roots[name])
    return found


def check_elastic(record, num_workers):
    """The first loss cost less than a second; those that came took part, up to so many."""
    recovered = events_of(record, Recovered)
    assert {"fault", "membership"} <= {event.cause for event in recovered}
    faults = [event for event in recovered if event.cause == "fault"]
    first = min(event.rendezvous_id for event in faults)
    seconds = [event.seconds for event in faults if event.rendezvous_id == first]
    assert 0 < min(seconds) <= max(seconds) < 1
    sizes = {len(plan.local_batch_sizes) for plan in events_of(record, BatchPlan)}
    assert max(sizes) == num_workers


def check_in_parts(record, num_workers):
    """Once all were there the optimizer's state was cut, and nobody had all of it."""
    told = [event.words for event in events_of(record, StateDivided)]
    divided = [words for words in told if "each part on two workers" in words]
    assert max(words.count(":0 ") for words in divided) == num_workers, told


def survive(script, folder, training, fault):
    """What the workers find that the fault does not end."""
    settings = {"hang_timeout_seconds": 15} if fault.how == "stop" else {}
    faults = {"faults": fault.places, "how": fault.how}
    results, job = run_job(script, folder, THREE, training, settings=settings, **faults)
    assert fault.says in job.console
    ended = fault.places if fault.how != "out_of_memory" else ()
    sound = results.keys() - {f"result-{worker.replace(':', '-')}" for worker in ended}
    assert len(sound) == len(THREE) - len(ended)
    return [results[name][0] for name in sound]


def record_of(folder):
    """The record of a folder's job."""
    return read_record(folder / "out")


def events_of(record, kind):
    """The events of a class, in order."""
    return [event for _, event in record.events if isinstance(event, kind)]
