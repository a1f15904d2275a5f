"""Who leads, who keeps a copy, and what becomes of both when the membership changes."""

from __future__ import annotations

import sys
import threading

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.config.variables import RecordConfig
from hetero_hvd.messages import (
    Evaluated,
    Finished,
    Leaving,
    Ready,
    RunEnded,
    RunStarted,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.parts import parts_of, read_run
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.worker.lead.recording import Recording, keeper_of
from hetero_hvd.worker.lead.settings import LeadSettings

PATIENCE_SECONDS = 30
WORKERS = tuple(WorkerId(*pair) for pair in (("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0)))


@pytest.mark.parametrize(
    ("nodes", "keeper"),
    [("a", None), ("aa", None), ("ab", 1), ("aab", 2), ("abc", 1), ("baa", 1), ("aaba", 2)],
)
def test_the_first_on_another_node_keeps_the_copy(nodes, keeper):
    """Nobody, where all are on one."""
    assert keeper_of([WorkerId(node, slot) for slot, node in enumerate(nodes)]) == keeper


class Workers:
    """The recordings of several workers, and exchanges between them."""

    def __init__(self, folder, workers=WORKERS):
        job = JobConfig(output=str(folder / "out"), sample_seconds=0)
        self.settings = LeadSettings(job=job, record=RecordConfig(name="test", tags=("lr=0.1",)))
        self.others = LeadSettings(job=job)  # a launcher gives its variables to some alone
        self.of = {worker: self.new(worker) for worker in workers}
        self.members = ()
        self.rendezvous_id = 0

    def new(self, worker):
        """One of them."""
        settings = self.settings if worker == WORKERS[0] else self.others
        return Recording(settings, worker, progress=lambda: 7)

    def meet(self, *members):
        """A rendezvous, in the order in which a worker goes through it."""
        survivors = [member for member in members if member in self.members] or members
        run = self.of[survivors[0]].run
        self.members = members
        self.rendezvous_id += 1
        event = WorkersJoined(
            rendezvous_id=self.rendezvous_id,
            workers=members,
            applied_steps=0,
            global_batch_size=64,
            capacities=(-1,) * len(members),
            prefetch_steps=0,
        )
        for member in members:
            self.of[member].run = run
        plan = self.of[members[0]].joined(event, 1)
        for rank, member in enumerate(members):
            self.of[member].met(members, rank)
        return plan

    def exchange(self):
        """What each has told reaches all."""
        payloads = [self.of[member].payload() for member in self.members]
        for member in self.members:
            self.of[member].heard(payloads)

    def settle(self):
        """Wait until rank 0 has handed on what it was told."""
        is_done = threading.Event()
        self.of[self.members[0]]._lead._thread.put(is_done.set)
        assert is_done.wait(PATIENCE_SECONDS)
        self.exchange()

    def end(self, *workers):
        """Their scripts end."""
        for worker in workers or self.members:
            self.of[worker].end()
            self.of[worker].close()


@pytest.fixture
def workers(tmp_path, monkeypatch):
    """On three nodes."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return Workers(tmp_path)


def kinds(folder):
    """Names of what was recorded."""
    return [type(event).__name__ for _, event in read_record(folder).events]


def told_of(folder, kind):
    """Events of one kind."""
    return [event for _, event in read_record(folder).events if isinstance(event, kind)]


def ready(worker):
    """What a worker says of itself before anybody knows its rank."""
    return Ready(worker=worker, host=worker.node, interface="", pid=1, versions={})


def test_rank_0_records_what_all_tell_and_another_node_has_it_too(tmp_path, workers):
    """In the order in which it came; who told it before its rank was known, too."""
    for worker, recording in workers.of.items():
        recording.tell(ready(worker))
    plan = workers.meet(*WORKERS)
    assert sum(plan.local_batch_sizes) == 64
    workers.of[WORKERS[3]].tell(Evaluated(epoch=0, step=5, metrics={"accuracy": 0.5}))
    workers.settle()
    for worker in WORKERS:
        workers.of[worker].tell(Finished(worker=worker, applied_steps=7, checksum="x"))
    workers.settle()
    workers.settle()
    workers.end()
    base = tmp_path / "out"
    assert [path.name for path in parts_of(base)] == ["out", "out.b"]
    for folder in parts_of(base):
        assert kinds(folder)[:2] == ["RunStarted", "WorkersJoined"]
        assert {event.worker for event in told_of(folder, Ready)} == set(WORKERS)
        assert len(told_of(folder, Evaluated)) == 1
        assert {event.worker for event in told_of(folder, Finished)} == set(WORKERS)
        (end,) = told_of(folder, RunEnded)
        assert (end.exit_code, end.reason) == (0, "the training is finished")
    copied = read_record(tmp_path / "out.b").events
    times = {event: at for at, event in read_record(base).events if isinstance(event, Finished)}
    assert all(at == times[event] for at, event in copied if isinstance(event, Finished))
    assert (tmp_path / "out" / "summary.json").exists()


SURVIVORS = {
    "who keeps the copy leads": (WORKERS[2:], ["out", "out.b", "out.c"]),
    "another one on its node leads": (WORKERS[3:], ["out", "out.b", "out.b-2", "out.c"]),
    "one on the same node leads": (WORKERS[1:], ["out", "out.b"]),
    "a third node leads": (WORKERS[4:], ["out", "out.b", "out.c"]),
}


@pytest.mark.parametrize("case", SURVIVORS)
def test_when_rank_0_is_lost_the_run_goes_on_and_its_parts_are_one(tmp_path, workers, case):
    """Whoever is rank 0 then, whatever folder it gets, the run keeps its id, name and history."""
    survivors, folders = SURVIVORS[case]
    workers.meet(*WORKERS)
    workers.of[WORKERS[0]].tell(Evaluated(epoch=0, step=3, metrics={"loss": 1.0}))
    workers.settle()
    lost = workers.of[WORKERS[0]]
    lost._lead.end(None)  # as a kill leaves it: no end is recorded
    lost.close()
    workers.meet(*survivors)
    workers.of[survivors[-1]].tell(Evaluated(epoch=1, step=5, metrics={"loss": 0.5}))
    workers.settle()
    workers.settle()
    workers.end(*WORKERS[1:])
    found = sorted(path.name for path in tmp_path.glob("out*"))
    assert set(found) <= set(folders)
    for folder in tmp_path.glob("out*"):
        assert {path.name for path in parts_of(folder)} == set(found)
        events = [event for _, event in read_run(folder).events]
        assert [e.rendezvous_id for e in events if isinstance(e, WorkersJoined)] == [1, 2]
        assert [event.epoch for event in events if isinstance(event, Evaluated)] == [0, 1]
        starts = [event for event in events if isinstance(event, RunStarted)]
        assert {event.run_id for event in starts} == {lost.run.run_id}
        assert all((event.name, event.tags) == ("test", {"lr": "0.1"}) for event in starts)
        assert sum(isinstance(event, RunEnded) for event in events) == 1


A, A1, B = WORKERS[0], WORKERS[1], WORKERS[2]
ROLES = {
    "who led keeps the copy": ([(A, A1, B), (B, A, A1)], 2),
    "and leads again": ([(A, A1, B), (B, A, A1), (A, A1, B)], 2),
    "who kept the copy leads": ([(A, B), (B, A)], 2),
    "to and fro": ([(A, B), (B, A), (A, B), (B, A)], 2),
    "another one of the node leads": ([(A, A1, B), (A1, A, B)], 3),
    "another one of the node keeps the copy": ([(A, A1, B), (B, A1, A)], 3),
}
"""Memberships, and the largest number of folders: a process waits for itself alone."""


@pytest.mark.parametrize("case", ROLES)
def test_whoever_is_rank_0_next_hears_of_all_that_nobody_has_taken_along(
    tmp_path, workers, caplog, case
):
    """Each event is there once, and nothing is garbled."""
    told = []
    memberships, num_folders = ROLES[case]
    for number, members in enumerate(memberships):
        for member in members:  # before the rendezvous: no exchange takes it along any more
            told.append(10 * number + members.index(member))
            workers.of[member].tell(Evaluated(epoch=0, step=told[-1], metrics={}))
        workers.meet(*members)
        workers.exchange()
        workers.settle()
    workers.settle()
    workers.settle()
    workers.end()
    record = read_run(tmp_path / "out")
    steps = [event.step for _, event in record.events if isinstance(event, Evaluated)]
    assert sorted(steps) == sorted(told)
    assert "has failed" not in caplog.text
    assert len(parts_of(tmp_path / "out")) <= num_folders


def test_what_no_exchange_could_take_along_is_counted_to_the_end(workers, monkeypatch, caplog):
    """Of who leads and of the others, in one line each."""
    workers.meet(A, B)
    monkeypatch.setattr("hetero_hvd.worker.lead.outbox.MAX_PAYLOAD_BYTES", 100)
    for step in range(3):
        metrics = {"x" * 200: 1.0}
        workers.of[B].tell(Evaluated(epoch=0, step=step, metrics=metrics))
    workers.end()
    assert "the record of the run: 3 messages of this worker are missing" in caplog.text


def test_one_that_leaves_does_not_end_the_run(tmp_path, workers):
    """It goes on elsewhere."""
    workers.meet(*WORKERS)
    workers.of[WORKERS[0]].tell(Leaving(applied_steps=3))
    workers.end(WORKERS[0])
    assert "RunEnded" not in kinds(tmp_path / "out")


@pytest.mark.parametrize("output", ["taken", "no folder"])
def test_a_folder_that_cannot_be_had_stops_nobody(tmp_path, monkeypatch, caplog, output):
    """Another run's is left alone and the next one is taken; without any the training goes on."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    path = tmp_path / "out"
    if output == "taken":
        path.mkdir()
        (path / "timings.jsonl").write_text("of another run\n")
    else:
        path.write_text("a file")
    workers = Workers(tmp_path, WORKERS[:1])
    assert workers.meet(WORKERS[0]).local_batch_sizes == (64,)
    workers.end()
    if output == "taken":
        assert "RunEnded" in kinds(tmp_path / "out-2")
        assert (path / "timings.jsonl").read_text() == "of another run\n"
    else:
        assert "this run is not recorded: " in caplog.text
        assert path.read_text() == "a file"
