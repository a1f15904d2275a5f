"""What a user leaves, says or takes away reaches that user's jobs alone: never the hub, nor others.

The interpreters are small programs: what is tried is the hub's side, and quickly.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.queue_events import JobCancelled, JobHeld, JobReleased
from hetero_hvd.core.view.queued.job_progress import FailingNode, ProgressFacts
from hetero_hvd.discovery.submission.queue_link import SubmittedJob
from hetero_hvd.errors import UserError
from hetero_hvd.hub.queue import job_queue
from hetero_hvd.hub.queue.job_process import JobProcess
from hetero_hvd.hub.queue.job_questions import progress_of
from hetero_hvd.hub.queue.job_queue import JobQueue
from hetero_hvd.hub.queue.queue_cluster import QueueCluster
from hetero_hvd.probes.kernel.boot_clock import boot_id
from hetero_hvd.probes.kernel.processes import started_at
from tests.hub.queue.queue_rig import TWO, until
from tests.kit.checkout import CHECKOUT

OWN = os.geteuid()
GONE = 4711
RUNNER = f"""#!{sys.executable}
import json, os, signal, sys, time
sys.path.insert(0, {str(CHECKOUT)!r})
from hetero_hvd.probes.kernel.boot_clock import boot_id
from hetero_hvd.probes.kernel.processes import started_at
folder, attempt = sys.argv[3:]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
told = {{"pid": os.getpid(), "started_at": started_at(os.getpid()), "boot": boot_id()}}
with open(f"{{folder}}/attempt-{{attempt}}.json", "w") as file:
    json.dump(told, file)
while not os.path.exists(f"{{folder}}/go"):
    time.sleep(0.02)
open(f"{{folder}}/attempt-{{attempt}}.exit", "w").write("143")
"""
"""A runner of a job that takes its time to end."""


class Rig:
    """A queue in this process, its users and their programs."""

    def __init__(self, folder):
        self.folder = folder
        self.lost = set()
        (folder / "cluster.yaml").write_text(json.dumps({"nodes": TWO}))
        self.runner = self.program("runner", RUNNER)
        self.clock = 1e9
        self.queue = self.open()

    def open(self):
        """The queue, as the next hub has it."""
        cluster = QueueCluster(self.folder / "cluster.yaml", {})
        return JobQueue(self.folder, cluster, self.seconds, self.user_of)

    def seconds(self):
        """The hub's clock."""
        return self.clock + time.monotonic()

    def user_of(self, uid):
        """As whom jobs run."""
        if uid in self.lost:
            raise UserError(f"user {uid}: this machine knows no such user")

    def program(self, name, text, mode=0o755):
        """A file to run."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def submit(self, python, uid=OWN, **more):
        """Give the queue a job of a user; gives its name."""
        name = str(self.queue.next_number)
        facts = {"command": ["train.py"], "environment": {}, "tree_bytes": 0, **more}
        digest = hashlib.sha256(b"").hexdigest()
        submitted = SubmittedJob(python=python, tree=digest, **facts)
        self.queue.submit(JobRequest(job=name, user=f"user{uid}", retries=1), submitted, uid, b"")
        return name

    def until_ended(self, name):
        """Look until a job has ended; gives how."""

        def has_ended():
            self.queue.look()
            return name in self.queue.state.ended

        until(has_ended, lambda: self.queue.state.jobs[name], 20)
        return self.queue.state.ended[name].outcome

    def begun(self, name):
        """The numbers of its starts that have begun."""
        marks = (self.folder / "queue" / "jobs" / name).glob("attempt-*.json")
        return sorted(int(mark.stem.removeprefix("attempt-")) for mark in marks)

    def close(self):
        """End all processes."""
        for name in self.queue.kept:
            folder = self.folder / "queue" / "jobs" / name
            if folder.exists():
                (folder / "go").touch()
            process = self.queue.process_of(name)
            until(lambda process=process: process.is_reaped, lambda: "a process stays", 20)


@pytest.fixture
def rig(tmp_path):
    """A queue with two devices."""
    found = Rig(tmp_path)
    yield found
    found.close()


IMPOSSIBLE = {
    "is not there": lambda rig: {"python": str(rig.folder / "gone")},
    "is a folder": lambda rig: {"python": str(rig.folder)},
    "has no name": lambda _: {"python": ""},
    "may not be run": lambda rig: {"python": rig.program("data", "", 0o644)},
    "is no program": lambda rig: {"python": rig.program("text", "words")},
    "ends at once": lambda _: {"python": "/bin/false"},
    "has more variables than the kernel takes": lambda rig: {
        "python": rig.runner, "environment": {f"A{n}": "x" * 131_000 for n in range(50)},
    },
}  # fmt: skip


@pytest.mark.parametrize("facts", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_cannot_be_started_ends_alone(rig, facts):
    """Jobs before it and after it run."""
    before = rig.submit(rig.runner)
    outcome = rig.until_ended(rig.submit(**facts(rig)))
    assert outcome.startswith("it failed: its interpreter cannot be started there")
    after = rig.submit(rig.runner)
    both = (before, after)
    until(lambda: rig.queue.look() or all(map(rig.begun, both)), lambda: "they do not run", 20)


def test_an_interpreter_that_reads_nothing_keeps_nobody_waiting(rig):
    """However long the order to it is."""
    asleep = rig.program(
        "asleep", f"#!/bin/sh\nwhile [ ! -e {rig.folder}/go ]; do sleep 0.1; done\n"
    )
    began = time.monotonic()
    name = rig.submit(asleep, command=["x" * 100_000] * 15)
    assert time.monotonic() - began < 20  # it would be for ever
    rig.queue.happened(JobCancelled(name))
    (rig.folder / "go").touch()


def test_a_user_who_is_gone_keeps_only_his_own_jobs(rig):
    """From starting; those that have ended are still known."""
    rig.until_ended(rig.submit("/bin/false", GONE))
    held = rig.submit(rig.runner, GONE, command=["train.py"])
    rig.queue.happened(JobHeld(held))
    rig.close()
    rig.lost.add(GONE)
    rig.queue = rig.open()
    rig.queue.happened(JobReleased(held))
    assert rig.until_ended(held).startswith("it failed: its interpreter cannot be started")
    with pytest.raises(UserError, match="knows no such user"):
        rig.submit(rig.runner, GONE)
    other = rig.submit(rig.runner)
    until(lambda: rig.queue.look() or rig.begun(other) == [1], lambda: rig.begun(other), 20)


def stranger():
    """A process of another user than this one."""
    if OWN:
        return None, 1
    process = subprocess.Popen(["/bin/sleep", "60"], user=pwd.getpwnam("nobody").pw_uid)
    return process, process.pid


def mark_of(pid):
    """What a runner says of itself."""
    return json.dumps({"pid": pid, "started_at": started_at(pid), "boot": boot_id()})


MARKS = {
    "no JSON": "{",
    "too deep": "[" * 4000,
    "too large a number": '{"pid": 1e999, "started_at": 1, "boot": ""}',
    "too large a process": json.dumps({"pid": 10**30, "started_at": 1, "boot": boot_id()}),
    "no process": json.dumps({"pid": -1, "started_at": 0, "boot": boot_id()}),
    "a list": "[1, 2]",
    "another user's process": None,
}


@pytest.mark.parametrize("text", MARKS.values(), ids=MARKS.keys())
def test_a_mark_is_believed_of_its_users_processes_alone(tmp_path, text):
    """Else who submits a job could have the hub of root end any process."""
    process, pid = stranger()
    try:
        until(lambda: process is None or started_at(pid), lambda: "no process")
        text = mark_of(pid) if text is None else text
        (tmp_path / "attempt-1.json").write_text(text)
        job = JobProcess(tmp_path, tmp_path / "note", OWN, lambda _uid: None)
        assert job.standing(1) == "lost"
        job.end(1)
        if process is not None:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
    finally:
        if process is not None:
            process.kill()
            process.wait()


LIAR = """#!/bin/sh
echo "{" > $3/attempt-$4.json
echo $1 > $3/attempt-$4.exit
exec sleep 60
"""


@pytest.mark.parametrize("hub", ["the same hub", "the next hub"])
@pytest.mark.parametrize("written", ["0", "1", "words"])
def test_a_job_that_lies_about_itself_ends_when_it_is_to(rig, written, hub):
    """Its device would be in use for ever, though the queue has it as free."""
    name = rig.submit(rig.program("liar", LIAR.replace("$1", written)))
    folder = rig.folder / "queue" / "jobs" / name
    until((folder / "attempt-1.exit").exists, lambda: "no lie", 20)
    first = rig.queue.process_of(name)
    if hub == "the next hub":
        rig.queue = rig.open()
    rig.queue.look()
    assert name in rig.queue.state.jobs
    rig.queue.happened(JobCancelled(name))
    until(lambda: rig.queue.look() or not rig.queue.is_leaving(name), lambda: "it stays", 20)
    assert first.is_reaped


def answer(done):
    """What a driver answers."""
    return json.dumps({"done": done}).encode() + b"\n"


REDUCED = {
    "nodes": ["alpha"],
    "seconds": 1,
    "exposed_seconds": 1,
    "busy_seconds": 1,
    "num_bytes": 1e9,
    "num_samples": 1,
}


def reduces(**unlike):
    """An answer with reductions that cannot be."""
    told = {"samples_done": 1, "reductions": REDUCED | unlike}
    return answer(json.dumps(told))


def fails(words):
    """An answer with what a guard says."""
    told = {"samples_done": 1, "failing": {"alpha": {"words": words, "is_lasting": False}}}
    return answer(json.dumps(told))


ANSWERS = {
    "less than nothing": answer('{"samples_done": -10, "samples_left": 5}'),
    "more than there is": answer('{"samples_done": 1e300}'),
    "a speed beyond all": answer('{"samples_done": 1, "rates": {"alpha": 1e-300}}'),
    "no bytes": reduces(num_bytes=0),
    "no samples": reduces(num_samples=0),
    "a reduction of no time": reduces(seconds=0, exposed_seconds=0),
    "no computation": reduces(busy_seconds=0),
    "more exposed than there is": reduces(exposed_seconds=2),
    "no worker": reduces(nodes=[]),
    "more workers than there are": reduces(nodes=["alpha"] * 5000),
    "a model of a long name": answer(json.dumps({"samples_done": 1, "model": "x" * 1001})),
    "words that give orders to a terminal": fails("\x1b[2J"),
    "words of several lines of a log": fails("hot\nWARNING all is lost"),
    "many words": fails("x" * 1001),
    "no number": answer('{"samples_done": NaN}'),
    "no line": b"x" * 4096,
    "nothing": b"",
    "too deep": b"[" * 100_000 + b"\n",
}


class Driver:
    """Answers one question at a socket, in its own way."""

    def __init__(self, folder, content):
        self.asked = b""
        self._end = socket.socket(socket.AF_UNIX)
        self._end.bind(str(folder / "control.sock"))
        self._end.listen()
        self._content = content
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self):
        end, _ = self._end.accept()
        with end, suppress(OSError):
            self.asked = end.recv(4096)
            end.sendall(self._content)

    def close(self):
        """Wait until it has."""
        self._thread.join(20)
        self._end.close()


@pytest.mark.parametrize("content", ANSWERS.values(), ids=ANSWERS.keys())
def test_what_no_training_tells_is_not_believed(tmp_path, content):
    """Nothing of it reaches a plan."""
    driver = Driver(tmp_path, content)
    assert progress_of(tmp_path, OWN) is None
    driver.close()
    assert driver.asked


def test_what_a_training_may_tell_is_believed(tmp_path):
    """The answers above differ from this one in one thing each."""
    driver = Driver(tmp_path, reduces())
    assert progress_of(tmp_path, OWN).reductions.num_bytes == 1e9
    driver.close()


def test_nodes_of_any_number_are_looked_up_at_once(rig, monkeypatch):
    """A driver may tell of as many as an answer holds: the hub does nothing else meanwhile."""
    name = rig.submit(rig.runner)
    names, found = QueueCluster.device_of_entry, []
    counted = property(lambda cluster: found.append(1) or names.fget(cluster))
    monkeypatch.setattr(QueueCluster, "device_of_entry", counted)
    failing = {f"n{n}": FailingNode(words="hot", is_lasting=True) for n in range(10_000)}
    rig.queue.progressed(name, ProgressFacts(failing=failing))
    assert len(found) == 1


def test_only_the_jobs_user_is_asked(tmp_path):
    """A link in a run's folder may lead to anybody's socket."""
    driver = Driver(tmp_path, answer('{"samples_done": 1}'))
    assert progress_of(tmp_path, OWN + 1) is None
    driver.close()
    assert not driver.asked


def test_no_start_is_passed_over(rig):
    """One that was never begun keeps its number: else the one before it could be forgotten."""
    name = rig.submit(rig.runner)
    until(lambda: rig.begun(name) == [1], lambda: rig.begun(name), 20)
    for _ in range(3):
        rig.queue.happened(JobHeld(name))
        rig.queue.happened(JobReleased(name))
        rig.queue.look()
    assert rig.queue.kept[name].attempt == 2
    assert rig.begun(name) == [1]
    rig.queue.happened(JobCancelled(name))
    rig.queue.look()
    assert rig.queue.is_leaving(name)  # the first start, which takes its time
    (rig.folder / "queue" / "jobs" / name / "go").touch()
    until(lambda: rig.queue.look() or not rig.queue.is_leaving(name), lambda: "it stays", 20)


def test_nobody_loses_results_by_the_jobs_of_others(rig, monkeypatch):
    """So many jobs of each user that have ended are kept."""
    monkeypatch.setattr(job_queue, "MAX_ENDED", 2)
    own = rig.submit("/bin/false")
    rig.until_ended(own)
    for _ in range(4):
        rig.until_ended(rig.submit("/bin/false", GONE))
    rig.queue.happened(JobCancelled(rig.submit("/bin/false", GONE)))
    assert [each.uid for each in rig.queue.kept.values()] == [OWN, GONE, GONE]


def test_an_older_database_deletes_no_results(rig):
    """What ran stays in its folder, and its number is not given again."""
    rig.until_ended(rig.submit("/bin/false"))
    folder = rig.folder / "queue" / "jobs"
    (folder / "7").mkdir()
    (folder / "7" / "attempt-1.exit").write_text("0")
    (folder / "8").mkdir()
    rig.queue = rig.open()
    assert sorted(each.name for each in folder.iterdir()) == ["1", "7"]
    assert rig.queue.next_number == 8


JUMPS = {"back to 1970": -1e9, "a month on": 30 * 86400.0}


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS.keys())
def test_time_goes_on_after_a_reboot(rig, seconds):
    """Nobody is charged for the time in which the machine was off, and no clock stands still."""
    name = rig.submit(rig.runner)
    until(lambda: rig.begun(name), lambda: "it does not run", 20)
    mark = rig.folder / "queue" / "jobs" / name / "attempt-1.json"
    rig.close()
    (mark.parent / "attempt-1.exit").unlink()
    mark.write_text(json.dumps({"pid": 1, "started_at": 1, "boot": "before"}))
    before = rig.queue.state.clock_seconds
    rig.clock += seconds
    rig.queue = rig.open()
    job = rig.queue.state.jobs[name]
    assert job.lease_seconds < 60
    rig.queue.look()
    assert job.num_failures == 1
    assert not job.devices
    passed = rig.queue.now() - before
    assert max(0.0, seconds) <= passed < max(0.0, seconds) + 60
    again = rig.queue.now()
    until(lambda: rig.queue.now() > again, lambda: "time stands still", 5)
