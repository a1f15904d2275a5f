"""`hetero-hvd run` as a person at a terminal sees it: real workers, and a wanted stop."""

import json
import os
import signal
import sys

import pytest

pytest.importorskip("pyte")

from tests.driver.conftest import SCRIPT, write_nodes
from tests.kit.screens.terminal import OnTerminal
from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

NOTHING_OF = ("Traceback", "uncaught exception", "Horovod background loop", "terminate called")


@pytest.mark.parametrize(
    ("stop", "code"),
    [("ctrl-c", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.matrix)],
)
def test_a_person_sees_how_it_starts_trains_and_stops(tmp_path, stop, code):
    """One line tells it, lines stay above it, and a wanted stop ends without a word too many."""
    write_nodes(tmp_path / "nodes.yaml", ("alpha", "beta"), progress_seconds=0.1)
    words = [sys.executable, "-m", "hetero_hvd", "run", "-f", str(tmp_path / "nodes.yaml")]
    words += ["--output", str(tmp_path / "out"), str(SCRIPT), "10000"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with OnTerminal(words, columns=100, environment=environment, folder=tmp_path) as terminal:
        terminal.until(lambda t: t.last.startswith("starting"))
        terminal.until(lambda t: "the script: " in t.last)
        terminal.until(lambda t: t.last.startswith("step ") and "samples/s" in t.last)
        assert "step 0: 2 workers train together" in terminal.text
        assert "alpha:0 " in terminal.last
        terminal.press("\x03") if stop == "ctrl-c" else terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == code
        said = terminal.text
    name = "SIGINT" if stop == "ctrl-c" else "SIGTERM"
    assert f"{name}: all workers are asked to end" in said
    assert f"ended: ended by {name}" in said
    assert not [words for words in NOTHING_OF if words in said]
    assert "  epoch 0  " not in said  # lines about steps are for who has no line that tells them
    wait_until(lambda: not processes_of(tmp_path), 10, "the workers to end")


@pytest.mark.matrix
def test_a_terminal_that_is_closed_ends_the_job_in_order(tmp_path):
    """The record says why; no worker is left."""
    write_nodes(tmp_path / "nodes.yaml", ("alpha", "beta"))
    words = [sys.executable, "-m", "hetero_hvd", "run", "-f", str(tmp_path / "nodes.yaml")]
    words += ["--output", str(tmp_path / "out"), str(SCRIPT), "10000"]
    with OnTerminal(words, folder=tmp_path) as terminal:
        terminal.until(lambda t: t.last.startswith("step ") and "samples/s" in t.last)
        terminal.close()
        assert terminal.process.wait(60) == 128 + signal.SIGHUP
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["reason"] == "ended by SIGHUP"
    wait_until(lambda: not processes_of(tmp_path), 10, "the workers to end")
