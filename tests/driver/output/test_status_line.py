"""The line that tells how a job goes: drawn where there is one, from the events and who waits."""

import io

import pytest

from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.status_line import StatusLine
from hetero_hvd.driver.output.terminal import TerminalStyle
from hetero_hvd.messages import RunStarted, WorkerId, WorkerStarted
from tests.leftovers import wait_until


@pytest.mark.parametrize("is_live", [True, False])
def test_it_is_drawn_where_there_is_one(is_live):
    """Elsewhere nobody is even asked what it waits for."""
    stream, asked = io.StringIO(), []
    console = Console(stream, style=TerminalStyle(is_live=is_live))
    line = StatusLine(console, lambda now: asked.append(now) or {"a:0": "waiting for ssh"})
    line.observe(0.0, RunStarted(run_id="x", command=(), nodes=(), settings={}))
    line.observe(0.0, WorkerStarted(worker=WorkerId("a", 0), host="a", num_restarts=0))
    line.look()
    if is_live:
        wait_until(stream.getvalue, 10, "the line")
    console.close()
    said = "starting 0 s  0 of 1 workers ready  waiting for ssh: a:0"
    assert stream.getvalue() == (f"{said}\r\x1b[J" if is_live else "")
    assert (len(asked), line.is_shown) == (is_live, is_live)
