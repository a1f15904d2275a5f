"""`hetero-hvd top` shows a run as text and on a terminal."""

import asyncio

from hetero_hvd.cli import main
from hetero_hvd.cli.watch.live_table import BAR_CHARACTERS, table_of
from hetero_hvd.cli.watch.screen import Screen
from hetero_hvd.core.view.live import LiveState, WorkerView

SENTENCE = "gamma:0 is the slowest"
STATE = LiveState(
    run_id="demo",
    verdict=[SENTENCE],
    workers=[
        WorkerView(name="alpha:0", phases={"forward": 0.1, "backward": 0.2, "comm_wait": 0.3}),
        WorkerView(name="gamma:0", phases={"data_wait": 0.3}, share=5),
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


def test_the_terminal_shows_the_table():
    """In textual: the sentence is on the screen; q leaves."""

    async def run():
        screen = Screen(lambda: STATE, interval_seconds=60)
        async with screen.run_test() as pilot:
            await screen.workers.wait_for_complete()
            await pilot.pause()
            shown = str(screen.query_one("#table").render())
            await pilot.press("q")
        return shown

    assert SENTENCE in asyncio.run(run())


def test_a_folder_without_a_run_is_one_line(tmp_path, capsys):
    """Exit code 2, no traceback."""
    assert main(["top", "--once", str(tmp_path)]) == 2
    assert "no run is recorded there" in capsys.readouterr().err
