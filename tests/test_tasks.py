"""docs/operations/tasks.md, row by row: each command is given as it stands, each click is made."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train import run as run_command
from hetero_hvd.discovery.submission.queue_client import submit
from hetero_hvd.run.records.writer import FILE
from tests.driver import chromium
from tests.hub.queue.queue_rig import QueueHub
from tests.kit.checkout import CHECKOUT
from tests.kit.screens.shown_run import NUM_EXCHANGES, SLOW, ShownRun, history, write_run

PAGE = (CHECKOUT / "docs" / "operations" / "tasks.md").read_text()
ROWS = dict(re.findall(r"^\| (?!to do this)([^|-][^|]*?) \| (.+?) \|$", PAGE, re.MULTILINE))
COMMANDS = {what: how.strip("`") for what, how in ROWS.items() if how.startswith("`")}
CLICKS = {what: how for what, how in ROWS.items() if not how.startswith("`")}
OPERATE = "o" * 20
DAY_SECONDS = 86_400
CLICK_SECONDS = 60.0


class Place:
    """The folder in which the commands are given.

    Args:
        top: It is empty.

    Attributes:
        live: A run that goes on, with its page; it is the latest.
        jobs: What `run` and `trial` would have started.
        hub: With a queue of two devices; None until it is asked for.
    """

    def __init__(self, top):
        self.top = top
        self.jobs = []
        self.hub = None
        now = time.time()
        for number, (name, days) in enumerate(
            {"digits": 0, "wide": 0, "narrow": 0, "old": 40}.items()
        ):
            about = {"name": name, "num_exchanges": NUM_EXCHANGES - number, "is_over": True}
            write_run(
                top / "runs" / name[::-1], list(history(now - 60 - days * DAY_SECONDS, **about))
            )
        (top / "runs" / "won" / "checkpoints").mkdir(parents=True)
        (top / "operate.token").write_text(OPERATE)
        (top / "operate.token").chmod(0o600)
        write_run(top / "runs" / "won", list(history(now, name="now")))
        settings = {"http_operate_token_file": str(top / "operate.token")}
        self.live = ShownRun(top / "runs" / "won", list(history(now, name="now")), **settings)
        nodes = "nodes:\n- {name: alpha, devices: [], price_per_hour: 2}\n"
        (top / "nodes.yaml").write_text(nodes)
        (top / "train.py").touch()

    def command(self, what):
        """As it stands on the page; a time of day is one at which that run was slow."""
        if "--at" not in COMMANDS[what]:
            return COMMANDS[what]
        begin = (self.top / "runs" / "worran" / FILE).stat().st_mtime - 60 - (NUM_EXCHANGES - 2)
        slow = time.strftime("%H:%M:%S", time.gmtime(begin + SLOW + 20))
        return COMMANDS[what].replace("14:05", slow)

    def order(self, line):
        """Answer of a page that is shown the first token, as an HTTP status."""
        request = urllib.request.Request(  # noqa: S310 - ours
            f"{self.live.web.url}/trace",
            data=b"{}",
            headers={"Authorization": f"Bearer {line}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - ours
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def queue(self):
        """The queue, with a job that waits for one of two devices, which commands have."""
        if self.hub is None:
            (self.top / "queue").mkdir()
            self.hub = QueueHub(self.top / "queue")
            self.hub.start()
            for _ in range(2):
                submit(["sleep", "600"], is_command=True, socket_path=self.hub.socket)
            self.hub.submit("third")
        return self.hub

    def close(self):
        """End all."""
        self.live.close()
        if self.hub is not None:
            self.hub.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The same for all rows."""
    found = Place(tmp_path_factory.mktemp("tasks"))
    yield found
    found.close()


def has(*words):
    """Whether all of them are printed."""

    def check(_place, printed):
        assert [word for word in words if not re.search(word, printed)] == [], printed

    return check


def has_written(name, word):
    """Whether a file has been written with that in it."""

    def check(place, _printed):
        assert re.search(word, (place.top / name).read_text())

    return check


def has_started(**wanted):
    """Whether a job would have been started with that, and with the script."""

    def check(place, _printed):
        command, about = place.jobs[-1]
        assert command == ("train.py",)
        assert {name: bool(about[name]) for name in wanted} == wanted

    return check


def alerts_once(place, _printed):
    """There is such an alert, and what follows from it is not sent beside it."""
    assert "HeteroHvdDriverLost" in (place.top / "watch" / "rules.yml").read_text()
    assert '"repeat_interval"' in (place.top / "watch" / "alertmanager.yml").read_text()


def has_other_token(place, _printed):
    """The page refuses the token of before, and takes the new one, without a restart."""
    assert place.order(OPERATE) in (401, 403)
    assert place.order((place.top / "operate.token").read_text().strip()) == 200


def completes(place, printed):
    """A bash that has read it knows a command's options."""
    asked = "COMP_WORDS=(hetero-hvd report --ht); COMP_CWORD=2; _shtab_hetero_hvd; echo $COMPREPLY"
    words = ["bash", "-c", f"{printed}\n{asked}"]
    done = subprocess.run(words, cwd=place.top, capture_output=True, check=True)
    assert done.stdout.split() == [b"--html"]


def has_deleted(place, _printed):
    """The old one alone."""
    there = {path.name for path in (place.top / "runs").iterdir() if path.is_dir()}
    assert there == {name[::-1] for name in ("digits", "wide", "narrow", "now")}


TRIES = {
    "see on a terminal who is slow now": has(r"alpha:0 .*training", r"gpu 0: NVIDIA"),
    "find the best run since yesterday": has(r"RUN .*\n(now|digits) (.*\n)*narrow "),
    "find a run by its tag": has(r"\nwide .*lr=0.1"),
    "find out why it was slow at 14:05 UTC": has(
        r"slower than the mean", r"beta:0 is slow: 0.60.*input"
    ),
    "know what limited a run, and what to do": has(r"bound by compute", "Next: "),
    "share a report as one file": has_written("report.html", "uPlot"),
    "compare three runs in the same plots": has_written(
        "compared.html", '"digits","wide","narrow"'
    ),
    "see what each node cost": has("alpha", "joules|kWh|energy"),
    "know what to change about a run": has("."),
    "know what a new node of a known speed brings": has("samples/s|ideal"),
    "measure which nodes are worth it": has_started(trial=True),
    "start a run with a name and a tag": has_started(trial=False),
    "go on after a crash": has_started(resume=True),
    "get the figures as a table": has_written("figures.csv", "run/loss"),
    "put a run into MLflow": has_written("mlruns/0/meta.yaml", "."),
    "delete records of more than a month ago": has_deleted,
    "be alerted once when the driver dies": alerts_once,
    "complete a command by tab": completes,
    "see where each setting comes from": has("min_np", "default"),
    "see why a node would be refused": has("alpha"),
    "rotate a token": has_other_token,
    "give the queue a job": has(r"job \d"),
    "see who waits for what": has("runs on 1 device", "waits: default has 0 of 2 devices free"),
    "know how long a job waits still, and for what": has("3 waits: .+"),
    "pause a job": has("3 .*held|hold"),
    "record a week of a node": has("week"),
}
"""What is to do, to what must have come of its command."""

OF_QUEUE = ("submit", "queue", "record")


@pytest.fixture
def started(place, monkeypatch):
    """Jobs are noted, not run."""

    def note(_arguments, _nodes_file, resume, _termination, **more):
        place.jobs.append((_arguments.command, {"resume": resume, "trial": None, **more}))
        return 0

    monkeypatch.setattr(run_command, "_train", note)


@pytest.mark.process
@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("what", COMMANDS)
def test_a_command_does_what_the_page_says(place, monkeypatch, capsys, what):
    """Given literally, in a folder with some runs, one of which goes on."""
    monkeypatch.chdir(place.top)
    monkeypatch.setenv("COLUMNS", "200")
    words = shlex.split(place.command(what))
    if words[0] == "eval":
        words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
    if words[1] in OF_QUEUE:
        monkeypatch.setenv("HETERO_HVD_QUEUE", str(place.queue().socket))
        monkeypatch.chdir(place.hub.folder / ("tree" if words[1] == "submit" else ""))
    if "mlflow:" in words[-1]:
        pytest.importorskip("mlflow")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", str(place.top / "mlruns"))
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert words[0] == "hetero-hvd"
    code = main(words[1:])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    TRIES[what](place, printed.out)


def test_every_row_is_tried():
    """None is only told, and nothing is tried that nobody reads."""
    assert {*COMMANDS} == {*TRIES}
    assert {*CLICKS} == {*CLICKED}
    assert len(ROWS) >= 25


async def sees_loss(tab, _place):
    """It is the first plot, and drawn."""
    await tab.until("[...board.plots.values()][0]?.told.title === 'Loss'")
    await tab.until("document.querySelectorAll('#plots canvas').length >= 9")


async def sees_time_left(tab, _place):
    """At the top of a narrow page, over which nothing sticks out."""
    await tab.screen(360, 740)
    await tab.wait_for("#progress-facts", "time left")
    assert await tab.value("document.documentElement.scrollWidth <= innerWidth")
    await tab.screen(1100, 900)


async def sees_phases(tab, _place):
    """In words, too."""
    words = "document.querySelector('#workers svg').getAttribute('aria-label')"
    assert re.search(r"forward \d+ ms", await tab.until(words))


async def sees_use(tab, _place):
    """Of each GPU."""
    assert "90 %" in await tab.wait_for("#nodes", "GPU 0")


async def ordered(tab, place, name, click):
    """Click, say yes, and wait for the order."""
    await tab.page.get_by_label("Token of the role operate").fill(
        (place.top / "operate.token").read_text().strip()
    )
    await click
    await tab.until("/under way/.test(document.body.innerText)")
    assert place.live.orders[-1][0] == name


async def drains(tab, place):
    """Of the node's worker."""
    await ordered(tab, place, "drain", tab.page.get_by_label("Drain beta:0").click())


async def stops(tab, place):
    """The whole run."""
    await ordered(tab, place, "stop", tab.page.get_by_role("button", name="Stop the run").click())


async def traces(tab, place):
    """The next steps."""
    await ordered(tab, place, "trace", tab.page.get_by_role("button", name="Trace").click())


async def overlays(tab, _place):
    """It has a line of its own."""
    await tab.page.locator("summary").click()
    await tab.page.get_by_label("Overlay wide").check()
    await tab.until("[...board.plots.values()][0]?.told.lines.length === 2")


CLICKED = {
    "see a loss curve live": sees_loss,
    "see on a phone how long it takes still": sees_time_left,
    "know which part of the time goes where": sees_phases,
    "see which GPU is idle": sees_use,
    "drain a node": drains,
    "stop a run in order": stops,
    "record the next steps with torch's profiler": traces,
    "lay an earlier run over this one": overlays,
}


@pytest.fixture(scope="module")
def clicked(place):
    """Each task of the page to what went wrong, and what was to be seen; in one browser."""
    found = {}

    async def act(tab):
        tab.page.on("dialog", lambda dialog: dialog.accept())
        for what, click in CLICKED.items():
            await tab.page.goto("about:blank")
            await tab.page.goto(place.live.web.url)
            try:
                async with asyncio.timeout(CLICK_SECONDS):
                    await tab.wait_for("#workers", "beta:0")
                    await click(tab, place)
            except (AssertionError, TimeoutError) as error:
                found[what] = error, await tab.text("body")
            else:
                found[what] = None, await tab.text("body")

    chromium.visit("about:blank", act)
    return found


@pytest.mark.skipif(chromium.find() is None, reason="needs chromium, playwright")
@pytest.mark.parametrize("what", CLICKS)
def test_a_click_does_what_the_page_says(clicked, what):
    """What it names in italics is to be seen there."""
    problem, shown = clicked[what]
    assert problem is None, shown
    assert [name for name in re.findall(r"\*(.+?)\*", CLICKS[what]) if name not in shown] == []
