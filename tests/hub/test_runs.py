"""What the hub knows of the runs of its cluster: kept, bounded, each mark once, whoever dies."""

from __future__ import annotations

import asyncio
from platform import node

import msgspec
import pytest

from hetero_hvd.core.recording.runs import MAX_MARKS, RunMark, RunReport
from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.hub import runs as module
from hetero_hvd.hub.runs import KEEP_SECONDS, LAST_SCRAPE_SECONDS, SILENT_SECONDS, HubRuns
from hetero_hvd.hub.storage.index import FILE, HubIndex

FIRST = 1_000_000.0
"""What the hub's clock shows when its monotonic one, and each driver's, shows 0."""


class Hub:
    """One without a network, whose clocks are set."""

    def __init__(self, folder):
        self.folder = folder
        self.clock = 0.0
        self.start()

    def start(self):
        """Start it, anew."""
        self.index = HubIndex(self.folder)
        self.runs = HubRuns(self.index, lambda: FIRST + self.clock, lambda: self.clock)

    def told(self, run_id="demo", marks=(), first_mark=0, **more):
        """A driver tells of its run now, by a clock that is 7 s ahead; gives the next mark."""
        report = RunReport(
            run_id=run_id, name="", host="h", folder=f"/runs/{run_id}", url="http://h:1",
            nodes=("a",), now_seconds=self.clock + 7, started_at_seconds=7.0,
            ended_at_seconds=None, exit_code=None, reason="", last_step=3, first_mark=first_mark,
            marks=tuple(at if isinstance(at, RunMark) else self.mark(at) for at in marks),
        )  # fmt: skip
        arguments = msgspec.to_builtins(msgspec.structs.replace(report, **more))
        return asyncio.run(self.runs.take(arguments))["next_mark"]

    def mark(self, at):
        """One by the driver's clock."""
        return RunMark(at + 7.0, "plan", f"at {at}")

    def item(self, run_id="demo"):
        """One of them."""
        return asyncio.run(self.runs.item(run_id))

    @property
    def states(self):
        """Of each run."""
        return {item["id"]: item["state"] for item in self.runs.items()}


@pytest.fixture
def hub(tmp_path):
    """One in an empty folder."""
    return Hub(tmp_path)


def test_a_run_is_told_by_the_hubs_clock(hub):
    """However far its driver's is off."""
    hub.clock = 20.0
    assert hub.told(marks=[1, 4]) == 2
    item = hub.item()
    assert item.pop("marks") == [
        {"at_unix_seconds": FIRST + at, "kind": "plan", "text": f"at {at}"} for at in (1, 4)
    ]
    assert item == {
        "id": "demo", "name": "demo", "kind": "run", "state": "running", "host": "h",
        "folder": "/runs/demo", "url": "http://h:1", "nodes": ("a",),
        "started_at_unix_seconds": FIRST, "ended_at_unix_seconds": None, "exit_code": None,
        "reason": "", "last_step": 3, "heard_at_unix_seconds": FIRST + 20, "num_earlier_marks": 0,
    }  # fmt: skip
    assert hub.item("another") is None


REPEATED = {
    "an answer was lost": [([1, 4], 0), ([1, 4], 0), ([1, 4, 5], 0)],
    "some are new": [([1, 4], 0), ([4, 5], 1)],
    "none is": [([1, 4, 5], 0), ([], 3)],
    "in parts": [([1], 0), ([4], 1), ([5], 2)],
}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("reports", REPEATED.values(), ids=REPEATED)
def test_each_mark_is_there_once(hub, reports, is_restarted):
    """By its number, where it was told first; also at a hub that was killed in between."""
    for later, (marks, first) in enumerate(reports):
        hub.clock = 20.0 + later
        next_mark = hub.told(marks=marks, first_mark=first)
        if is_restarted:
            hub.start()
    assert next_mark == 3
    assert [mark["at_unix_seconds"] - FIRST for mark in hub.item()["marks"]] == [1, 4, 5]
    assert hub.item()["started_at_unix_seconds"] == FIRST


def test_who_is_silent_has_vanished_until_he_is_heard(hub):
    """Also where the hub was started anew meanwhile; one that has ended stays so."""
    hub.told("killed")
    hub.clock = 1.0
    hub.told("over", ended_at_seconds=7.5, exit_code=3, reason="why")
    assert hub.states == {"killed": "running", "over": "ended"}
    hub.clock += SILENT_SECONDS
    assert hub.states == {"killed": "vanished", "over": "ended"}
    assert hub.item("killed")["url"] is None
    hub.start()
    assert hub.states == {"killed": "running", "over": "ended"}
    hub.clock += SILENT_SECONDS + 1
    assert hub.states == {"killed": "vanished", "over": "ended"}
    hub.told("killed")
    assert hub.states == {"killed": "running", "over": "ended"}
    over = hub.item("over")
    assert (over["ended_at_unix_seconds"], over["exit_code"], over["reason"]) == (
        FIRST + 0.5,
        3,
        "why",
    )


def test_what_is_kept_is_bounded(hub, monkeypatch):
    """The newest marks of a run, and the runs that were heard last; those that go on stay."""
    monkeypatch.setattr(module, "MAX_RUNS", 3)
    hub.clock = 900.0
    hub.told("long", marks=range(1, 1 + MAX_MARKS // 2))
    hub.clock = 1000.0
    hub.told("long", marks=range(MAX_MARKS), first_mark=MAX_MARKS // 2)
    found = hub.item("long")
    assert (len(found["marks"]), found["num_earlier_marks"]) == (MAX_MARKS, MAX_MARKS // 2)
    for name in ("a", "b"):
        hub.told(name, marks=[1])
    with pytest.raises(TryAgainError, match="3 runs go on, which is the most"):
        hub.told("c")
    hub.told("a", ended_at_seconds=8.0)
    hub.told("c")
    hub.start()
    assert hub.states.keys() == {"long", "b", "c"}
    assert hub.index.run_marks("a") == []


def test_a_step_alone_is_written_now_and_then(hub):
    """A run that goes on costs the disk little; all else is there before the driver is told."""
    hub.told(last_step=1)
    for second in range(int(KEEP_SECONDS) + 5):
        hub.clock = float(second)
        hub.told(last_step=second)
    assert hub.item()["last_step"] == KEEP_SECONDS + 4
    hub.start()
    assert hub.item()["last_step"] == KEEP_SECONDS
    hub.told(url=None)
    hub.start()
    assert hub.item()["url"] is None


def test_a_full_disk_loses_nothing(hub, monkeypatch):
    """A driver is told that it does not take it, and says it again; it is no silent one."""

    def full(*_given, **_named):
        raise OSError(28, "No space left on device")

    hub.clock = 5.0
    hub.told(marks=[1])
    hub.clock += SILENT_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(hub.index, "put_run", full)
        for name in ("demo", "another"):
            with pytest.raises(OSError, match="No space"):
                hub.told(name, marks=[1, 4])
        hub.clock += 1
        assert hub.states == {"demo": "running"}
    assert hub.told(marks=[1, 4]) == hub.told("another", marks=[1, 4]) == 2
    hub.start()
    assert [len(hub.item(name)["marks"]) for name in ("demo", "another")] == [2, 2]


WRONG = {
    "an id with a path": {"run_id": "a/b"},
    "no id": {"run_id": ""},
    "an address that runs in a browser": {"url": "javascript:alert(1)"},
    "half an address": {"url": "http://[::1"},
    "an address that is none": {"url": "http://[1:2]:80"},
    "no port": {"url": "http://10.0.0.2"},
    "a port that is none": {"url": "http://10.0.0.2:65536"},
    "any port": {"url": "http://10.0.0.2:0"},
    "a path": {"url": "http://10.0.0.2:80/a?b"},
    "a user": {"url": "http://me@10.0.0.2:80"},
    "an address with a line": {"url": "http://10.0.0.2:80\n"},
    "a time that is none": {"started_at_seconds": float("nan")},
    "a time in the future": {"started_at_seconds": 1e9},
    "a mark in the future": {"marks": (RunMark(1e9, "plan", "x"),)},
    "a mark of another kind": {"marks": (RunMark(1.0, "spam", "x"),)},
    "a long text": {"reason": "x" * 10_000},
    "too many marks": {"marks": (RunMark(1.0, "plan", "x"),) * (MAX_MARKS + 1)},
    "a number that is none": {"first_mark": -1},
    "a step that is none": {"last_step": -5},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_report_that_lies_is_refused(hub, change):
    """In one line; nothing of it is kept."""
    with pytest.raises(UserError) as found:
        hub.told(**change)
    assert "\n" not in str(found.value)
    assert hub.states == {}
    assert hub.index.runs() == []


def test_a_run_takes_little_room(hub):
    """On the disk, with twenty marks of which each tells of four workers."""
    hub.clock = 100.0
    words = "step 120: shares alpha:0 24, beta:0 12, gamma:0 12, delta:0 16: 1.23 times as fast"
    for number in range(20):
        marks = [RunMark(float(n + 7), "plan", words) for n in range(20)]
        hub.told(f"2026-11-21T04-10-01Z-{number:08}", marks=marks)
    size = (hub.folder / FILE).stat().st_size
    assert size / 20 < 8192


def test_prometheus_is_told_of_the_runs_that_it_can_reach(hub):
    """Until they are silent, or a while after the end, so that it sees how they have ended."""
    hub.told("a-1a2b3c4d", url="https://h:1")
    hub.told("b-1a2b3c4d", url=None)
    hub.told("c-1a2b3c4d", url="http://127.0.0.1:3")
    hub.told("d-1a2b3c4d", url="http://127.0.0.1:4", host=node())
    targets = {
        "a": {"targets": ["h:1"], "labels": {"run": "a", "__scheme__": "https"}},
        "d": {"targets": ["127.0.0.1:4"], "labels": {"run": "d", "__scheme__": "http"}},
    }
    assert hub.runs.targets() == [*targets.values()]
    hub.start()
    hub.clock += SILENT_SECONDS
    assert hub.runs.targets() == [*targets.values()]
    hub.told("a-1a2b3c4d", url=None, ended_at_seconds=hub.clock + 7, exit_code=0)
    hub.clock += LAST_SCRAPE_SECONDS
    assert hub.runs.targets() == [targets["a"]]
    hub.clock += 1
    assert hub.runs.targets() == []


ELSEWHERE = {
    "http://0.0.0.0:8080": "h:8080",
    "https://[::]:8080": "h:8080",
    "http://[::ffff:0.0.0.0]:8080": "h:8080",
    "http://10.0.0.2:8080/": "10.0.0.2:8080",
    "http://[fd00::2]:8080": "[fd00::2]:8080",
    "http://gpu-1.example:8080": "gpu-1.example:8080",
}


@pytest.mark.parametrize("url", ELSEWHERE)
def test_an_address_that_stands_for_all_is_the_machines_name_elsewhere(hub, url):
    """Prometheus, and who clicks on it, would ask his own machine; and send it his token."""
    hub.told("a-1a2b3c4d", url=url)
    assert [target["targets"] for target in hub.runs.targets()] == [[ELSEWHERE[url]]]
    assert hub.item("a-1a2b3c4d")["url"].partition("://")[2] == ELSEWHERE[url]


@pytest.mark.parametrize("host", ["", "(none)", "me@h", "h:1/x"])
def test_a_page_that_has_no_address_is_left_out(hub, caplog, host):
    """Which is said once; the others are listed."""
    for _ in range(2):
        hub.told("a-1a2b3c4d", url="http://0.0.0.0:1", host=host)
        hub.told("b-1a2b3c4d")
    assert [target["labels"]["run"] for target in hub.runs.targets()] == ["b"]
    assert hub.item("a-1a2b3c4d")["url"] is None
    assert caplog.text.count("run a-1a2b3c4d is not listed for Prometheus") == 1


AWAY = {
    "a moment": (5.0, ["a"]),
    "a night": (40_000.0, []),
    "a night before its clock was set back": (-40_000.0, []),
}


@pytest.mark.parametrize("away", AWAY)
def test_a_hub_that_starts_lists_no_run_that_was_long_over(hub, away):
    """What has its port now would be sent the token; it is listed when its driver tells of it."""
    hub.clock = 50_000.0
    hub.told("a-1a2b3c4d")
    seconds, listed = AWAY[away]
    hub.clock += seconds
    hub.start()
    assert [target["labels"]["run"] for target in hub.runs.targets()] == listed
    hub.clock = 100_000.0
    hub.told("a-1a2b3c4d")
    assert len(hub.runs.targets()) == 1


def test_what_an_earlier_version_has_kept_breaks_no_list(hub):
    """A url that is none is nobody's page."""
    hub.told("a-1a2b3c4d")
    (kept,) = hub.index.runs()
    hub.index.put_run("bad", kept.replace("a-1a2b3c4d", "bad").replace("http://h:1", "http://[::1"),
                      [], oldest_mark=0, forgotten=None)  # fmt: skip
    hub.start()
    assert [target["labels"]["run"] for target in hub.runs.targets()] == ["a"]
    assert hub.item("bad")["url"] is None
