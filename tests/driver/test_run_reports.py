"""A run appears at the cluster's hub; whatever the hub does, the training goes on as it would."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from hetero_hvd.core.recording.runs import MAX_MARKS
from hetero_hvd.driver import run_reports as module
from hetero_hvd.driver.run_reports import RunReports
from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.messages import BatchPlan, RunEnded, RunStarted, WorkerId
from tests.driver.conftest import until as until_so
from tests.hub import impatient_hub
from tests.hub.rig import HubProcess, free_port
from tests.leftovers import wait_until

STARTED = RunStarted(run_id="demo-1", command=(), nodes=("alpha",), settings={})
AWAY = TryAgainError("no hub answers")
LAST_STEP = 5 * 8 - 1
NEAR_SECONDS = 2.0
"""A report may take so long on a busy machine, and what it tells of is as much later."""


class Hub:
    """One that answers what it is told to, call by call, and what is right after that.

    Args:
        answers: What comes of each report: an error, `RIGHT`, `NEVER`, whatever it says, or `LOST`:
            its store is a new one.
        is_named: See `HubOrders`.
        is_possible: See `HubOrders`.
    """

    RIGHT, NEVER, LOST = object(), object(), object()

    def __init__(self, answers=(), *, is_named=True, is_possible=True):
        self.answers = list(answers)
        self.is_named = is_named
        self.is_possible = is_possible
        self.reports = []
        self.marks = []

    @asynccontextmanager
    async def conversation(self):
        """Talk with it."""
        yield self

    async def order(self, action, report, *, answer_seconds):
        """Take a report."""
        assert action == "report"
        answer = self.answers.pop(0) if self.answers else self.RIGHT
        self.reports.append(report)
        if answer is self.NEVER:
            try:
                async with asyncio.timeout(answer_seconds):
                    await asyncio.Event().wait()
            except TimeoutError:
                raise TryAgainError("in time") from None
        if isinstance(answer, Exception):
            raise answer
        if answer is self.LOST:
            self.marks.clear()
            return {"next_mark": 0}
        if answer is not self.RIGHT:
            return answer
        assert report["first_mark"] == len(self.marks)
        self.marks += report["marks"]
        return {"next_mark": len(self.marks)}


def plan(number):
    """One with other shares."""
    return BatchPlan(
        rendezvous_id=1, plan_id=number, from_step=number, exchange_steps=1,
        workers=(WorkerId("alpha", 0),), local_batch_sizes=(number,), reason="it is so",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nobody waits long."""
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "MAX_RETRY_SECONDS", 0.05)


def reported(hub, *, until=lambda reports: reports.facts["taken"] >= 2):
    """What people are told of a run with three marks; and how long its end is held up."""
    told = []

    async def act():
        reports = RunReports(hub, Path("out"), told.append)
        for event in (STARTED, plan(1)):
            reports.observe(0.0, event)
        reports.begin("http://127.0.0.1:1")
        for number in (2, 3):
            await asyncio.sleep(0.05)
            reports.observe(0.0, plan(number))
        async with asyncio.timeout(10):
            await until_so(lambda: until(reports))
        reports.observe(0.0, RunEnded(exit_code=3, reason="why"))
        before = time.monotonic()
        await reports.close()
        return time.monotonic() - before, reports.facts

    took, facts = asyncio.run(act())
    return told, took, facts


MENDED = {
    "it is there": [],
    "it is away": [AWAY] * 3,
    "it is killed in between": [Hub.RIGHT, AWAY, AWAY],
    "its disk is full": [TryAgainError("the hub's disk does not take it")] * 2,
    "it is upgraded": [JobError("'report' is no command of this hub")] * 2,
    "it is slow": [Hub.NEVER],
    "it says nothing": [None, {}, []],
    "it says what no hub says": ["x", {"next_mark": -1}, {"next_mark": "x"}],
}


@pytest.mark.parametrize("answers", MENDED.values(), ids=MENDED)
def test_a_hub_that_is_well_again_knows_all(answers):
    """Each mark, once; people are told once that it did not, and it is counted."""
    hub = Hub(answers)
    told, _, facts = reported(hub)
    assert [mark["text"].partition(":")[0] for mark in hub.marks] == ["step 1", "step 2", "step 3"]
    assert hub.reports[0]["url"] == "http://127.0.0.1:1"
    last = hub.reports[-1]
    assert (last["exit_code"], last["reason"], last["url"]) == (3, "why", None)
    num_wrong = sum(answer is not Hub.RIGHT for answer in answers)
    assert facts["failed"] == num_wrong
    assert len(told) == bool(num_wrong)
    assert all("the training goes on" in line for line in told)


def test_a_hub_that_has_lost_its_store_is_told_anew():
    """As far as marks are kept."""
    hub = Hub([Hub.RIGHT, Hub.RIGHT, Hub.LOST])
    reported(hub, until=lambda reports: reports.facts["taken"] >= 4)
    assert len(hub.marks) == 3


@pytest.mark.parametrize("number", [MAX_MARKS, 2**53])
def test_a_hub_that_has_marks_of_its_own_gets_none(number):
    """And the run goes on."""
    told, _, facts = reported(Hub([{"next_mark": number}] * 1000))
    assert (told, facts["failed"]) == ([], 0)


def failed(reports):
    """Whether it has, several times."""
    return reports.facts["failed"] >= 3


QUIET = {
    "there can be none": (Hub(is_possible=False), lambda _: True, False),
    "none announces itself": (Hub([AWAY] * 1000, is_named=False), failed, False),
    "the named one is away": (Hub([AWAY] * 1000), failed, True),
    "it never answers": (Hub([Hub.NEVER] * 1000), failed, True),
}


@pytest.mark.parametrize(("hub", "until", "is_told"), QUIET.values(), ids=QUIET)
def test_without_a_hub_everything_is_as_before(hub, until, is_told):
    """Only who has named one is told; the end of the job is not held up."""
    told, took, facts = reported(hub, until=until)
    assert len(told) == is_told
    assert facts["taken"] == 0
    assert took < 1.0


def test_a_hub_that_hangs_does_not_hold_up_the_end(monkeypatch):
    """For longer than a short time."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 100.0)
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    _, took, _ = reported(Hub([Hub.RIGHT] * 2 + [Hub.NEVER] * 1000))
    assert took < 1.0


class Cluster:
    """A hub with an HTTP side, and jobs that it hears of."""

    def __init__(self, folder, start_job):
        folder.mkdir()
        self.hub = HubProcess(folder)
        self.http_port = free_port()
        self._start_job = start_job
        self.start_hub()

    def start_hub(self):
        """Start it, anew."""
        port = str(self.http_port)
        self.hub.start("--http-port", port, program=(impatient_hub.__file__,))

    def job(self, *script):
        """A job of two workers, when the hub listens."""
        wait_until(lambda: self.ask("/v1/runs") is not None, 90, "the hub")
        key = str(self.hub.folder / "cluster.key")
        names = ("alpha", "beta")
        target = str(self.hub.target)
        return self._start_job(names=names, script=script, hub=target, cluster_key_file=key)

    def ask(self, path):
        """What the API says; None: it is not there."""
        url = f"http://127.0.0.1:{self.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    def wait(self, is_so, seconds=90):
        """The only run that is known, with its marks, as soon as something is so."""
        deadline = time.monotonic() + seconds
        run = None
        while time.monotonic() < deadline:
            listed = self.ask("/v1/runs")
            if listed and listed["items"]:
                (item,) = listed["items"]
                run = self.ask(f"/v1/runs/{item['id']}")
                if run is not None and is_so(run):
                    return run
            time.sleep(0.1)
        raise AssertionError(f"it does not become so: {run}\n{self.hub.log}")


@pytest.fixture
def cluster(tmp_path, start_job):
    """One that ends with the test."""
    found = Cluster(tmp_path / "hub", start_job)
    yield found
    found.hub.kill()


@pytest.mark.matrix
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_run_is_shown_until_its_driver_is_killed(cluster):
    """The hub is killed in the middle of it, and knows as much when it is back."""
    job = cluster.job("10000")
    run = cluster.wait(lambda run: run["last_step"] is not None)
    assert (run["kind"], run["state"], run["nodes"]) == ("run", "running", ["alpha", "beta"])
    assert {"reset", "plan"} <= {mark["kind"] for mark in run["marks"]}
    with urllib.request.urlopen(f"{run['url']}/state", timeout=10) as page:  # noqa: S310 - ours
        assert json.load(page)["run_id"] == run["id"]
    assert (Path(run["folder"]) / "logs").is_dir()
    (target,) = cluster.ask("/v1/sd")
    assert target["labels"] == {"run": "out", "__scheme__": "http"}
    with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=10) as page:
        assert f'run_id="{run["id"]}"' in page.read().decode()
    cluster.hub.kill()
    cluster.start_hub()
    back = cluster.wait(lambda now: now["last_step"] > run["last_step"] + 50)
    assert back["state"] == "running"
    assert back["started_at_unix_seconds"] == run["started_at_unix_seconds"]
    assert back["marks"][: len(run["marks"])] == run["marks"]
    assert job.status()["hub_reports"]["taken"] > 1
    os.killpg(job.process.pid, signal.SIGKILL)
    gone = cluster.wait(lambda now: now["state"] == "vanished")
    assert (gone["url"], gone["ended_at_unix_seconds"]) == (None, None)
    assert cluster.ask("/v1/sd") == []
    assert gone["heard_at_unix_seconds"] >= back["heard_at_unix_seconds"]
    cluster.hub.kill()
    cluster.start_hub()
    assert cluster.wait(lambda now: now["state"] == "vanished")["marks"] == gone["marks"]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_run_that_ends_is_shown_with_its_end_and_phases(cluster):
    """By when it was in them, on the axis of the recording of that phase."""
    job = cluster.job("5", "session")
    assert job.wait() == 0
    assert not [line for line in job.output if "does not hear" in line]
    both = cluster.ask("/v1/runs")["items"]
    (item,) = (item for item in both if item["kind"] == "run")
    run = cluster.ask(f"/v1/runs/{item['id']}")
    assert {name: run[name] for name in item} == item
    assert (run["state"], run["exit_code"], run["url"]) == ("ended", 0, None)
    assert 0 < run["last_step"] <= LAST_STEP  # of the last exchange
    phases = [mark for mark in run["marks"] if mark["kind"] == "phase"]
    assert [mark["text"] for mark in phases] == ["phase fit begins", "phase fit ends"]
    times = [run["started_at_unix_seconds"]]
    times += [mark["at_unix_seconds"] for mark in run["marks"]] + [run["ended_at_unix_seconds"]]
    assert all(later > time - NEAR_SECONDS for time, later in pairwise(times))
    assert {item["kind"]: item["name"] for item in both} == {"recording": "fit", "run": run["name"]}
    (recording,) = (item for item in both if item["kind"] == "recording")
    began = recording["started_at_unix_seconds"]
    assert began == pytest.approx(phases[0]["at_unix_seconds"], abs=NEAR_SECONDS)
    assert cluster.ask(f"/v1/runs/{recording['id']}")["marks"] == []
