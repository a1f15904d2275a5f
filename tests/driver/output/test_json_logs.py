"""Log files as JSON lines: every line says who, where and at which step."""

import io
import json
import logging

import msgspec
import pytest

from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.output.json_logs import LogFormatter, LogLines
from hetero_hvd.messages import LOG_MARK, LogRecord, WorkerExited, WorkerId, WorkersJoined

ALPHA = WorkerId("alpha", 1)


@pytest.fixture(name="lines")
def lines_of_a_run():
    """Of a run in its second membership."""
    lines = LogLines("demo")
    joined = WorkersJoined(
        rendezvous_id=2,
        workers=(ALPHA,),
        applied_steps=8,
        global_batch_size=4,
        capacities=(-1,),
        prefetch_steps=0,
    )
    lines.observe(0.0, joined)
    return lines


def test_output_becomes_records_and_stays_readable(lines, tmp_path):
    """What a script prints gets the driver's knowledge; a record brings its own step and level."""
    stream = io.StringIO()
    console = Console(stream)
    path = tmp_path / "alpha-1.log"
    output = WorkerOutput(
        console, path, "[alpha:1] ", as_json=lambda line: lines.of_output(ALPHA, line)
    )
    record = LogRecord(
        time=1.0, level="warning", logger="x.y", message="late", step=5, rendezvous_id=1
    )
    for part in (b"one\ntw", b"o\n" + LOG_MARK, msgspec.json.encode(record), b"\n\x1enone"):
        output.feed(part)
    output.close()
    console.close()
    assert stream.getvalue().split("\n") == [
        "[alpha:1] one",
        "[alpha:1] two",
        "[alpha:1] WARNING x.y: late",
        r"[alpha:1] \x1enone",
        "",
    ]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["level"], r["message"], r["step"], r["rendezvous_id"]) for r in written] == [
        ("info", "one", 7, 2),
        ("info", "two", 7, 2),
        ("warning", "late", 5, 1),
        ("info", "\x1enone", 7, 2),
    ]
    assert {(r["run_id"], r["node"], r["slot"]) for r in written} == {("demo", "alpha", 1)}


def test_the_driver_logs_events_with_the_state_of_the_run(lines, tmp_path):
    """Also an error with its traceback is one line."""
    handler = logging.FileHandler(tmp_path / "driver.log")
    handler.setFormatter(LogFormatter(lines))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        lines.observe(0.0, WorkerExited(worker=ALPHA, host="a", exit_code=1, words="went"))
        try:
            int("lost")
        except ValueError:
            logging.getLogger("some").exception("it failed")
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
    event, error = map(json.loads, (tmp_path / "driver.log").read_text().splitlines())
    assert (event["message"], event["level"], event["step"]) == ("alpha:1 went", "info", 7)
    assert event["node"] is None
    assert error["level"] == "error"
    assert "ValueError: invalid literal" in error["message"]


@pytest.mark.process
def test_a_job_writes_records(start_job):
    """The driver's and the workers' files hold records only; the terminal has text."""
    job = start_job("--log-format", "json", names=("alpha",), script=("1",))
    assert job.wait() == 0
    assert "[alpha:0] the script is done" in job.output
    for name, who in (("driver", (None, None)), ("alpha-0", ("alpha", 0))):
        text = (job.folder / "out" / "logs" / f"{name}.log").read_text()
        records = [json.loads(line) for line in text.splitlines()]
        assert {(r["node"], r["slot"]) for r in records} == {who}
        assert {r["run_id"].rpartition("-")[0] for r in records} == {"out"}
        assert records[-1]["rendezvous_id"] > 0
    assert [r["message"] for r in records if not r["logger"]][-1] == "the script is done"
