"""However a script is started, its run leaves the same record, and no death costs what was read."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import JobError
from hetero_hvd.messages import (
    Crashed,
    Evaluated,
    NodeEquipped,
    Ready,
    RunEnded,
    RunStarted,
    WorkersJoined,
)
from hetero_hvd.run.records.parts import parts_of, read_run, run_timings
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.timings import read_timings
from hetero_hvd.run.reports.facts import facts_of
from tests.kit.processes import is_running
from tests.leftovers import wait_until

SCRIPT = Path(__file__).parents[1] / "driver" / "train_logging.py"
PROGRAMS = Path(sys.executable).parent
HOROVODRUN = [PROGRAMS / "horovodrun", "--gloo", "--network-interfaces", "lo", "-np", "2"]
ELASTIC = [*HOROVODRUN, "--min-np", "1", "--host-discovery-script", "./hosts"]
NODES = "nodes: [{name: localhost, slots: 1, devices: []}]\n"
WAYS = {
    "alone": [sys.executable],
    "horovodrun": [*HOROVODRUN, "-H", "localhost:2", sys.executable],
    "elastic horovodrun": [*ELASTIC, sys.executable],
    "hetero-hvd run": [sys.executable, "-m", "hetero_hvd", "run", "-f", "nodes.yaml", "--"],
}
NUM_KILLS = 30
PATIENCE_SECONDS = 60

pytestmark = [pytest.mark.process, pytest.mark.timeout(200)]


class Started:
    """A run that was started in one of the ways, in a folder of its own."""

    def __init__(self, folder, way, epochs, *, hosts="localhost:2\n", script=SCRIPT):
        pytest.importorskip("horovod")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(f"#!/bin/sh\nprintf '{hosts}'\n")
        (folder / "hosts").chmod(0o700)
        (folder / "nodes.yaml").write_text(NODES)
        self.folder = folder / "out"
        variables = os.environ | {
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "HETERO_HVD_OUTPUT": "out",
            "HETERO_HVD_NAME": "four ways",
            "HETERO_HVD_TAGS": "lr=0.05",
        }
        del variables["HETERO_HVD_RECORD"]
        self.output = folder / "output"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [*map(str, WAYS[way]), str(script), str(epochs)],
                cwd=folder,
                env=variables,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self):
        """It ends well."""
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.output.read_text()

    def events(self):
        """What is safe by now."""
        try:
            return [event for _, event in read_record(self.folder).events]
        except JobError:
            return []

    def until(self, condition):
        """Wait until what is safe is so."""
        wait_until(lambda: condition(self.events()), PATIENCE_SECONDS, self.output.read_text())

    def writer(self):
        """Process id of who writes the record: the driver, or rank 0."""
        if b"hetero_hvd\0run" in Path(f"/proc/{self.process.pid}/cmdline").read_bytes():
            return self.process.pid
        events = self.events()
        pids = {event.worker: event.pid for event in events if isinstance(event, Ready)}
        joined = [event for event in events if isinstance(event, WorkersJoined)]
        return pids[joined[-1].workers[0]]

    def close(self):
        """End all that is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def start(tmp_path):
    """Start a run; none outlives the test."""
    runs = []

    def start(way, epochs, name="run", **more):
        runs.append(Started(tmp_path / name, way, epochs, **more))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def is_known(events):
    """Whether it is recorded who trains."""
    kinds = {type(event) for event in events}
    return {Ready, WorkersJoined, RunStarted} <= kinds


def test_four_ways_leave_the_same_record(start, capsys):
    """One schema, and `compare` finds no difference in what was tried, nor in how good it was."""
    runs = {way: start(way, 2, way.replace(" ", "-")) for way in WAYS}
    for run in runs.values():
        run.wait()
    records = {way: read_record(run.folder) for way, run in runs.items()}
    for way, record in records.items():
        events = [event for _, event in record.events]
        kinds = {type(event).__name__ for event in events}
        assert kinds >= {"RunStarted", "Ready", "WorkersJoined", "BatchPlan", "Finished"}, way
        assert [type(event) for event in events].count(RunEnded) == 1
        assert events[-1] == RunEnded(exit_code=0, reason="the training is finished"), way
        assert [event.epoch for event in events if isinstance(event, Evaluated)] == [0, 1]
        assert {name for _, told in record.logged for name in told.values} >= {"loss", "weight"}
        for name in ("summary.json", "report.html", "timings.jsonl", "decisions.jsonl"):
            assert (runs[way].folder / name).stat().st_size, (way, name)
    capsys.readouterr()
    assert main(["compare", *(str(run.folder) for run in runs.values())]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].count("(the training is finished)") == len(WAYS)
    tried = [line.partition(":")[0] for line in lines[1:] if not line.startswith("out-")]
    # The last step that all have measured depends on how busy the machine is.
    assert tried[0] == "accuracy", lines
    assert re.fullmatch(r"loss at step \d+", tried[1]), lines
    assert len(set(lines[1].partition(": ")[2].replace(" and ", ", ").split(", "))) == 1


def kill_at(run, moment):
    """End who writes the record, so long after its start; gives what was read of it before."""
    run.until(is_known)
    writer = run.writer()
    deadline = time.monotonic() + moment
    before = read_record(run.folder), list(read_timings(run.folder))
    while time.monotonic() < deadline:
        before = read_record(run.folder), list(read_timings(run.folder))
    assert is_running(writer)
    os.kill(writer, signal.SIGKILL)
    wait_until(lambda: not is_running(writer), PATIENCE_SECONDS, "the end of who records")
    return before


def check_nothing_is_lost(run, before, timings_before):
    """All that was read before is still there, and the reader reads."""
    after = read_record(run.folder)
    assert after.events[: len(before.events)] == before.events
    assert after.logged[: len(before.logged)] == before.logged
    timings = list(read_timings(run.folder))
    assert timings[: len(timings_before)] == timings_before
    steps = {(row["worker"], row["at_unix_seconds"]): row["last_step"] for row in after.rollups}
    for row in before.rollups:
        assert steps[row["worker"], row["at_unix_seconds"]] >= row["last_step"]
    assert not any(isinstance(event, RunEnded) for _, event in after.events)
    assert main(["report", str(run.folder)]) == 0


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("elastic")])
def test_who_records_is_killed(start, way):
    """Nothing that anybody has read before is missing afterwards; the elastic one: see below."""
    chance = random.Random(way)  # noqa: S311 - a schedule that can be repeated
    run = start(way, 1000)
    before = kill_at(run, chance.uniform(0.0, 1.0))
    check_nothing_is_lost(run, *before)


@pytest.mark.matrix
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("way", WAYS)
def test_who_records_is_killed_at_many_moments(start, way):
    """The same thirty times."""
    chance = random.Random(7)  # noqa: S311 - a schedule that can be repeated
    for number in range(NUM_KILLS):
        run = start(way, 1000, str(number))
        before = kill_at(run, chance.uniform(0.0, 3.0))
        check_nothing_is_lost(run, *before)
        run.close()


ENDINGS = {
    "an error": ("raise ValueError('boom')", 1, 1, "localhost:0: ValueError: boom"),
    "no UTF-8": ("raise OSError('\\udcff')", 1, 1, "localhost:0: OSError: \\udcff"),
    "wrong input": (
        "raise hetero_hvd.UserError('wrong')",
        2,
        2,
        "localhost:0: wrong (wrong_input.py:13)",
    ),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, 130, "ended by SIGINT"),
    "an exit code": ("sys.exit(3)", 3, 3, "the script has ended with exit code 3"),
    "an early end": ("sys.exit()", 0, 0, "the script has ended after 2 steps"),
}
"""What a script does at its third step, its exit code, and what is recorded of it."""

SHORT = """
import os, signal, sys
import torch
import hetero_hvd

signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may ignore it
model = torch.nn.Linear(1, 1)
loader = torch.utils.data.DataLoader(torch.zeros(64, 1), batch_size=4, num_workers=1)
trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters()), loader)
for _ in trainer.epochs(1):
    for x in trainer.batches():
        if trainer.applied_steps == 2:
            END
        trainer.step(lambda x: model(x).mean(), x)
"""


def test_the_end_of_a_script_is_recorded_as_it_was(start, tmp_path):
    """With its code and reason; an error with its traceback, once."""
    runs = {}
    for name, (end, *_) in ENDINGS.items():
        script = tmp_path / f"{name.replace(' ', '_')}.py"
        script.write_text(SHORT.replace("END", end))
        runs[name] = start("alone", 0, name, script=script)
    for name, (_, process_code, code, reason) in ENDINGS.items():
        assert runs[name].process.wait(PATIENCE_SECONDS) == process_code
        events = runs[name].events()
        assert events[-1] == RunEnded(exit_code=code, reason=reason)
        crashes = [event for event in events if isinstance(event, Crashed)]
        assert len(crashes) == (process_code > 0 and name != "an exit code")
        assert all(reason.endswith(crash.error) for crash in crashes)
        assert all(crash.error.partition(" (")[0] in crash.traceback for crash in crashes)
        assert all(crash.user_error is (code == 2) for crash in crashes)
        output = runs[name].output.read_text()
        assert output.count("Traceback") == (process_code == 1 or name == "Ctrl-C")
        assert (runs[name].folder / "report.html").exists()


IDLE = """
import time
import torch
import hetero_hvd

model = torch.nn.Linear(1, 1)
loader = torch.utils.data.DataLoader(torch.zeros(8 * 60, 1), batch_size=8)
trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters()), loader)

def loss(x):
    time.sleep(len(x) * (0.2 if trainer.is_leader else 0.001))
    return model(x).mean()

for _ in trainer.epochs(1):
    for x in trainer.batches():
        trainer.step(loss, x)
        trainer.log(one=1, **{"led": 1} if trainer.is_leader else {})
"""


def test_values_are_logged_where_rank_0_has_no_samples(start, tmp_path):
    """By the first worker that has some: each step once, the last ones too."""
    script = tmp_path / "idle.py"
    script.write_text(IDLE)
    run = start("horovodrun", 0, script=script)
    run.wait()
    counts = Counter()
    for _, told in read_run(run.folder).logged:
        counts.update({name: found.count for name, found in told.values.items()})
    assert counts["led"] < 60, "rank 0 always had samples"
    assert (counts["one"], counts["loss"]) == (60, 60)


def test_the_page_shows_a_run_without_a_driver(start, monkeypatch):
    """Its address is told once, with the folder; samples of the node are among the metrics."""
    monkeypatch.setenv("HETERO_HVD_HTTP_PORT", "0")
    run = start("alone", 1000)
    found = []

    def has_page():
        found[:] = re.findall(
            r"^run: out  page: (http://\S+/)$", run.output.read_text(), re.MULTILINE
        )
        return found

    wait_until(has_page, PATIENCE_SECONDS, "the page's address")

    def page(name):
        with urllib.request.urlopen(found[0] + name, timeout=5) as answer:  # noqa: S310 - our own
            return answer.read().decode()

    wait_until(lambda: "hetero_hvd_node_cpu" in page("metrics"), PATIENCE_SECONDS, "samples")
    run.until(lambda events: any(isinstance(event, Evaluated) for event in events))
    status = json.loads(page("status"))
    assert (status["state"], status["plan"]) == ("training", {"localhost:0": 64})
    state = json.loads(page("state"))
    assert [worker["state"] for worker in state["workers"]] == ["training"]
    run.until(lambda events: any(isinstance(event, NodeEquipped) for event in events))
    order = urllib.request.Request(found[0] + "stop", method="POST")  # noqa: S310 - our own
    with pytest.raises(urllib.error.HTTPError, match="401"):  # nobody may without a token
        urllib.request.urlopen(order, timeout=5)  # noqa: S310


def test_the_record_goes_on_without_rank_0_and_its_machine(start, capsys):
    """Another host goes on with the run; its copy alone lacks seconds, the parts together less."""
    run = start("elastic horovodrun", 12, hosts="localhost:1\\n127.0.0.1:1\\n")
    run.until(lambda events: sum(isinstance(event, Evaluated) for event in events) >= 3)
    (before, _) = kill_at(run, 0.0)
    run.wait()
    base, copy = parts_of(run.folder)
    assert base.name == "out"
    assert copy.name in {"out.127.0.0.1", "out.localhost"}  # Horovod says who is the first
    whole = read_run(run.folder)
    facts = facts_of(whole)
    assert (facts.state, facts.num_memberships) == ("the training is finished", 2)
    assert whole.events[: len(before.events)] == before.events
    epochs = [event.epoch for _, event in whole.events if isinstance(event, Evaluated)]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 11  # the one that was under way may have been told to nobody
    assert len({event.run_id for _, event in whole.events if isinstance(event, RunStarted)}) == 1
    memberships = [e.rendezvous_id for _, e in run_timings(copy) if isinstance(e, WorkersJoined)]
    assert memberships == [1, 2]
    capsys.readouterr()
    assert main(["runs", str(run.folder.parent)]) == 0
    assert len(capsys.readouterr().out.splitlines()[1:]) == 1
    for path in base.iterdir():  # the machine is gone
        if path.is_file():
            path.unlink()
    alone = [event for _, event in read_run(copy).events]
    num_before = sum(isinstance(event, Evaluated) for _, event in before.events)
    is_first = [isinstance(e, WorkersJoined) and e.rendezvous_id == 2 for e in alone].index(True)
    copied = sum(isinstance(event, Evaluated) for event in alone[:is_first])
    assert copied >= num_before - 2
    assert facts_of(read_run(copy)).state == "the training is finished"
