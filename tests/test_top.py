"""`hetero-hvd top` shows a run as text and on a terminal."""

import asyncio
import re
import sys
import time
from contextlib import ExitStack

import pytest
from textual.containers import VerticalScroll

from hetero_hvd.cli import main
from hetero_hvd.cli.watch.live_table import (
    BAR_CHARACTERS,
    SORTS,
    detail_of,
    pieces_of,
    sparkline,
    table_of,
)
from hetero_hvd.cli.watch.screen import HELP, Screen
from hetero_hvd.core.view.live import LiveState, WorkerView
from tests.kit.screens.terminal import OnTerminal

SENTENCE = "gamma:0 is the slowest"
STATE = LiveState(
    run_id="demo",
    verdict=[SENTENCE],
    throughput=[(float(at), 100.0 * at) for at in range(8)],
    workers=[
        WorkerView(
            name="alpha:0",
            phases={"forward": 0.1, "backward": 0.2, "comm_wait": 0.3},
            step_seconds=0.6,
            speed_ratio=1.0,
        ),
        WorkerView(
            name="gamma:0",
            phases={"data_wait": 0.3},
            share=5,
            step_seconds=0.9,
            speed_ratio=0.5,
            slow_since_step=7,
            slow_cause="data",
        ),
    ],
)


def test_bars_are_in_proportion():
    """The longest step fills the bar; each phase has its part; the unmeasured is a dash."""
    alpha, gamma = [line for line in table_of(STATE) if line[:7] in ("alpha:0", "gamma:0")][-2:]
    assert "f" * 5 + "b" * 10 + "." * 15 in alpha
    assert f"    5  {'d' * 15} " in gamma
    assert "d" * 16 not in gamma
    assert BAR_CHARACTERS == 30
    assert " - " in alpha


COLUMNS = ["state", "share", "step", "late", "speed", "memory", "GPU", "restarts"]
FIT = {
    20: [],
    40: ["share", "step"],
    60: ["state", "share", "step", "speed"],
    70: ["state", "share", "step", "late", "speed"],
    120: COLUMNS,
    200: COLUMNS,
    None: COLUMNS,
}


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
def test_what_no_bar_can_show_is_left_out(seconds):
    """The rest of the step is drawn as if it were all."""
    worker = WorkerView(name="alpha:0", phases={"forward": 0.1, "backward": seconds})
    (line,) = (each for each in table_of(LiveState(workers=[worker])) if each[:7] == "alpha:0")
    assert "f" * BAR_CHARACTERS in line


@pytest.mark.parametrize("num_columns", FIT)
def test_columns_go_where_there_is_no_room(num_columns):
    """The least important ones first, before the bar is too short; no line is too long."""
    lines = list(table_of(STATE, num_columns=num_columns))
    (heading,) = [line for line in lines if line.startswith("worker")]
    assert [word for word in heading.split() if word not in {"worker", "phases"}] == FIT[
        num_columns
    ]
    assert max(map(len, lines)) <= (num_columns or 1000)
    assert any("ddddd" in line for line in lines)
    assert " ".join(lines).count("is the slowest") == 1


def test_a_long_name_is_cut_where_there_is_no_room():
    """The numbers are worth more."""
    state = LiveState(workers=[WorkerView(name=f"{'n' * 60}:0", share=7)])
    (line,) = [line for line in table_of(state, num_columns=40) if line.startswith("nnn")]
    assert line.split()[:2] == [f"{'n' * 12}…", "7"]


ORDERS = {
    "name": ["a:0", "b:0", "c:0"],
    "share": ["b:0", "c:0", "a:0"],
    "step": ["c:0", "a:0", "b:0"],
    "late": ["b:0", "a:0", "c:0"],
    "speed": ["c:0", "b:0", "a:0"],
}


@pytest.mark.parametrize("sort", SORTS)
def test_workers_can_be_sorted(sort):
    """What needs a look comes first; what nobody has measured comes last."""
    state = LiveState(
        workers=[
            WorkerView(name="a:0", step_seconds=0.2, lateness_seconds=0.1),
            WorkerView(
                name="b:0", share=9, step_seconds=0.1, lateness_seconds=0.2, speed_ratio=1.0
            ),
            WorkerView(name="c:0", share=5, step_seconds=0.3, speed_ratio=0.2),
        ]
    )
    lines = [line for line in table_of(state, sort=sort) if line[1:3] == ":0"]
    assert [line[:3] for line in lines] == ORDERS[sort]


SPARKS = {
    (): "",
    (0.0, 0.0): "▁▁",
    (1.0,): "█",
    (0.0, 1.0, 2.0): "▁▅█",
    (float("nan"), 2.0): "█",
    (*range(100),): "▆▆▇▇▇▇▇▇▇▇▇▇▇▇▇▇████████",
}


@pytest.mark.parametrize("values", SPARKS, ids=len)
def test_sparks_are_heights(values):
    """Of the newest values, from nothing on, so that noise is not blown up."""
    assert sparkline(list(values)) == SPARKS[values]


def test_the_detail_of_a_worker_tells_all():
    """A dash is what nobody has measured."""
    lines = list(detail_of(STATE.workers[1]))
    assert lines[0] == "gamma:0: starting, restarts 0"
    assert "slow since step 7: data" in lines[1]
    words = [line.split() for line in lines]
    assert ["data", "wait", "300", "ms", "33%"] in words
    assert ["memory", "-"] in words


def test_sparks_say_what_they_are():
    """What, in which unit, and from where to where they go."""
    (line,) = [line for line in table_of(STATE) if "▁" in line]
    assert line == "samples/s of late, from 0 to 700: ▁▂▃▄▅▆▇█"
    history = {"alpha:0": [0.1, 0.2], "gamma:0": []}
    lines = ["".join(p.text for p in line) for line in pieces_of(STATE, history=history)]
    (heading,) = [line for line in lines if line.startswith("worker")]
    (alpha,) = [line for line in lines if line.startswith("alpha:0")]
    assert heading.endswith("step of late, from 0 to   longest")
    assert alpha.endswith("▅█".ljust(24) + "   200 ms")


def test_more_workers_than_lines_are_paged_through():
    """The chosen one is always to be seen, whichever key has chosen it."""
    names = [f"n{number:02}:0" for number in range(60)]
    state = LiveState(workers=[WorkerView(name=name, step_seconds=0.1) for name in names])
    seen = {}

    async def look():
        screen = Screen(lambda: state, interval_seconds=60.0, drain=str)
        async with screen.run_test(size=(100, 20)) as pilot:
            while screen._state is None:
                await pilot.pause(0.02)
            view = screen.query_one(VerticalScroll)
            for key, times in {"pagedown": 1, "down": 3, "pageup": 1}.items():
                await pilot.press(*[key] * times)
                await pilot.pause()
                line = screen._line_of_chosen
                seen[key] = screen._chosen, line, view.scroll_y, view.size.height
            await pilot.press(*["pagedown"] * 9)
            await pilot.pause()
            seen["last"] = screen._chosen, screen._line_of_chosen, view.scroll_y, view.size.height

    asyncio.run(look())
    assert seen["last"][0] == names[-1]
    assert names.index(seen["pagedown"][0]) > 10
    assert names.index(seen["down"][0]) == names.index(seen["pagedown"][0]) + 3
    assert seen["pageup"][0] == names[3]
    for _, line, top, height in seen.values():
        assert top <= line < top + height


PROGRAM = """
import sys
from pathlib import Path
from hetero_hvd.cli.watch.screen import show
from hetero_hvd.errors import JobError
from tests.test_top import STATE
def source():
    STATE.step += 1
    return STATE
def drain(worker):
    if worker == "alpha:0":
        raise JobError("alpha:0 is needed")
    Path(sys.argv[1]).write_text(worker)
    return f"{worker} leaves"
show(source, interval_seconds=0.3, drain=drain)
"""


@pytest.fixture
def on_terminal(tmp_path):
    """The screen on a terminal of a width; its workers train, and can be drained."""
    pytest.importorskip("pyte")
    with ExitStack() as stack:

        def start(columns):
            words = [sys.executable, "-c", PROGRAM, str(tmp_path / "drained")]
            terminal = stack.enter_context(OnTerminal(words, columns=columns, lines=30))
            terminal.until(lambda t: "gamma:0" in t.text and "Quit" in t.text)
            return terminal

        yield start


def step_of(terminal):
    """That the first line tells."""
    return int(re.search(r"step (\d+)", terminal.text)[1])


@pytest.mark.parametrize("columns", [40, 70, 120, 200])
def test_a_person_sees_the_table_whatever_the_width(on_terminal, columns):
    """With the columns that fit, in colours; it goes on, and q leaves."""
    terminal = on_terminal(columns)
    (heading,) = [line for line in terminal.shown if line.startswith("worker")]
    there = [column for column in COLUMNS if f" {column}" in heading]
    assert there == FIT[columns]
    assert SENTENCE in terminal.text
    assert terminal.colour_of("gamma:0  ") != terminal.colour_of("worker")
    before = step_of(terminal)
    terminal.until(lambda t: step_of(t) > before)
    terminal.resize(50, 30)
    terminal.until(
        lambda t: any(line.startswith("worker") and "state" not in line for line in t.shown)
    )
    terminal.press("q")
    assert terminal.wait() == 0


def test_what_a_person_does_with_keys(on_terminal, tmp_path):
    """Help, detail, sort, pause; and a drain that asks first."""
    terminal = on_terminal(100)
    terminal.press("?")
    terminal.until(lambda t: all(line in t.text for line in HELP.splitlines()))
    terminal.press("q")
    terminal.until(lambda t: "let the chosen worker go" not in t.text)
    terminal.press("s")
    terminal.until(lambda t: "sorted by share" in t.text)
    terminal.press("p")
    terminal.until(lambda t: "paused" in t.text)
    before = step_of(terminal)
    with pytest.raises(AssertionError):
        terminal.until(lambda t: step_of(t) > before, timeout_seconds=1.0)
    terminal.press("p")
    terminal.until(lambda t: step_of(t) > before)
    terminal.press("\x1b[B\r")
    terminal.until(lambda t: "alpha:0: starting" in t.text)  # by share it is the second
    terminal.press("d")
    terminal.until(lambda t: "Let alpha:0 go?" in t.text)
    terminal.press("n")
    terminal.until(lambda t: "Let alpha:0 go?" not in t.text)
    terminal.press("d")
    terminal.until(lambda t: "Let alpha:0 go?" in t.text)
    terminal.press("y")
    terminal.until(lambda t: "alpha:0 is needed" in t.text)
    terminal.press("\x1b[A")
    terminal.until(lambda t: "gamma:0: starting" in t.text)
    assert not (tmp_path / "drained").exists()
    terminal.press("d")
    terminal.until(lambda t: "Let gamma:0 go?" in t.text)
    terminal.press("y")
    terminal.until(lambda t: "gamma:0 leaves" in t.text)
    assert (tmp_path / "drained").read_text() == "gamma:0"
    terminal.press("q")
    assert terminal.wait() == 0


def test_a_source_that_is_slow_is_asked_once_at_a_time():
    """Else the questions would pile up, each of them slower than the one before."""
    asked, under_way, most = 0, 0, 0

    def source():
        nonlocal asked, under_way, most
        asked, under_way = asked + 1, under_way + 1
        most = max(most, under_way)
        time.sleep(0.2)
        under_way -= 1
        return STATE

    async def look():
        screen = Screen(source, interval_seconds=0.02, drain=str)
        async with screen.run_test() as pilot:
            while asked < 4:
                await pilot.pause(0.05)

    asyncio.run(look())
    assert most == 1


def test_a_folder_without_a_run_is_one_line(tmp_path, capsys):
    """Exit code 2, no traceback."""
    assert main(["top", "--once", str(tmp_path)]) == 2
    assert "no run is recorded there" in capsys.readouterr().err
