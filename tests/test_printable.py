"""No text from elsewhere gives the terminal an order, or looks like a line of ours."""

import io
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.cli import main
from hetero_hvd.cli.watch.live_table import table_of
from hetero_hvd.core.printable import RESET, printable, printable_json
from hetero_hvd.core.view.live import LiveState, WorkerView
from hetero_hvd.discovery.advert import Advert
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.output.json_logs import log_file
from hetero_hvd.messages import (
    Crashed,
    Evaluated,
    Finding,
    Judged,
    PhasesTimed,
    RunEnded,
    RunStarted,
    WorkerId,
)
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.tracking.final_report import as_dict, as_text
from hetero_hvd.run.tracking.progress import Progress
from hetero_hvd.run.tracking.summary import Summary

WORKER = WorkerId("alpha", 0)
EVIL = "x\x1b[2J\x9b31m\x07\u202ey\x1b]0;title\x07\nforged\x85forged\u2028forged\rforged"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


def on_console(act):
    """What `act(console)` puts on the terminal."""
    stream = io.StringIO()
    console = Console(stream)
    act(console)
    console.close()
    return stream.getvalue()


def output_of_a_script(folder, _capsys):
    """Lines that a worker prints, whole and in pieces."""

    def act(console):
        output = WorkerOutput(console, folder / "log", "[alpha:0] ")
        output.feed(EVIL.replace("\n", "").encode() + b"\n" + EVIL.replace("\n", "").encode())
        output.close()

    return on_console(act)


def metric_on_the_console(_folder, _capsys):
    """The name of a result of an evaluation."""
    event = Evaluated(step=1, epoch=0, metrics={EVIL: 1.0})
    return on_console(lambda console: Progress(console.say, interval_seconds=1).evaluated(event))


def summary_on_the_console(_folder, _capsys):
    """Reason of the end, the last evaluation, the verdict."""
    summary = Summary(baseline_steps=0)
    summary.num_memberships = 1
    summary.evaluated = Evaluated(step=1, epoch=0, metrics={EVIL: 1.0})
    summary.findings = (Finding(kind="compute", is_complete=True, words=EVIL),)
    facts = as_dict(summary, exit_code=1, reason=EVIL)
    return on_console(lambda console: [console.say(line) for line in as_text(facts)])


def live_table(_folder, _capsys):
    """`hetero-hvd top`, of whatever answers at the address."""
    state = LiveState(run_id=EVIL, state=EVIL, verdict=[EVIL], events=[(0.0, EVIL)])
    state.workers = [WorkerView(name=EVIL, state=EVIL)]
    return "\n".join(table_of(state)) + "\n"


def record(folder):
    """A run whose records are full of it."""
    recorder = Recorder(folder)
    started = RunStarted(run_id=EVIL, command=(EVIL,), nodes=(EVIL,), settings={EVIL: EVIL})
    judged = Judged(step=1, findings=(Finding(kind="compute", is_complete=True, words=EVIL),))
    phases = PhasesTimed(worker=WORKER, step=1, seconds={EVIL: 1.0}, counts={EVIL: 1})
    crashed = Crashed(worker=WORKER, error=EVIL, traceback=EVIL, user_error=False)
    for event in (started, judged, phases, crashed, RunEnded(exit_code=1, reason=EVIL)):
        recorder.observe(1.0, event)
    recorder.close()
    (folder / "timings.jsonl").touch()


def command(*words):
    """The terminal after a command of ours."""

    def act(folder, capsys):
        run, other = folder / "runs" / "one", folder / "runs" / "two"
        for path in (run, other):
            path.mkdir(parents=True)
            record(path)
        places = {"RUN": str(run), "OTHER": str(other), "RUNS": str(run.parent)}
        main([places.get(word, word) for word in words])
        printed = capsys.readouterr()
        return printed.out + printed.err

    return act


def driver_log(folder, _capsys):
    """What the driver logs about a peer."""
    with log_file(folder / "driver.log"):
        logging.getLogger("some").warning("from %s", EVIL)
    return (folder / "driver.log").read_text()


def nodes(folder, capsys):
    """The table of nodes with what one of them announces."""
    advert = Advert(
        name="alpha",
        machine="0" * 8,
        instance=b"0" * 8,
        addresses=("127.0.0.1",),
        port=1,
        slots=1,
        summary=EVIL,
        version=EVIL,
        figures={EVIL: 1.0},
        issued_at_seconds=1.0,
        nonce=b"0" * 16,
    )

    async def scan(cluster):
        return cluster, {"alpha": advert}

    (folder / "nodes.yaml").write_text("nodes: [{name: alpha}]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetero_hvd.driver.nodes.node_discovery.scan", scan)
        patch.setenv("HETERO_HVD_CLUSTER_KEY_FILE", str(folder / "key"))
        assert main(["nodes", "-f", str(folder / "nodes.yaml"), "--discover"]) == 0
    return capsys.readouterr().out


DOORS = {
    "output of a script": output_of_a_script,
    "metric": metric_on_the_console,
    "summary": summary_on_the_console,
    "top": live_table,
    "top of a record": command("top", "RUN", "--once"),
    "report": command("report", "RUN"),
    "runs": command("runs", "RUNS"),
    "compare": command("compare", "RUN", "OTHER"),
    "nodes": nodes,
    "error": command("report", EVIL),
    "driver.log": driver_log,
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_foreign_text_stays_in_its_line(door, tmp_path, capsys):
    """Each door to the terminal shows what a terminal would obey, and no line is forged."""
    printed = door(tmp_path, capsys)
    assert "forged" in printed, "the text did not get there at all"
    assert OBEYED.findall(printed) == []
    assert not [line for line in printed.split("\n") if line.startswith("forged")]


def test_colours_of_a_script_are_kept_and_end_with_the_line():
    """Else the next line of another worker would have them too."""
    shown = printable("\x1b[1;31mred\x1b[2Jnot cleared", keeps_colours=True)
    assert shown == "\x1b[1;31mred\\x1b[2Jnot cleared" + RESET
    assert printable("\x1b[31mred") == "\\x1b[31mred"


def test_a_progress_bar_is_its_last_state(tmp_path):
    """As a terminal would show it."""

    def act(console):
        output = WorkerOutput(console, tmp_path / "log", "")
        output.feed(b"\r 10%\r 50%\r100%\n")
        output.close()

    assert on_console(act) == "100%\n"


@given(st.text())
def test_printable_text_is_one_line_that_can_be_encoded(text):
    """Whatever the text: nothing to obey is left, and what is harmless is as it was."""
    for shown in (printable(text), printable(text, keeps_colours=True)):
        shown.encode()
        assert len(shown.replace("\x1b[", "").splitlines()) <= 1
    assert printable(printable(text)) == printable(text)
    if text.isascii() and text.isprintable():
        assert printable(text) == text


@given(st.dictionaries(st.text(), st.text()))
def test_printable_json_says_the_same(content):
    """Nothing to obey is left in it but its own lines."""
    text = json.dumps(content, ensure_ascii=False, indent=1)
    shown = printable_json(text)
    assert json.loads(shown) == content
    assert all(printable(line) == line for line in shown.split("\n"))
