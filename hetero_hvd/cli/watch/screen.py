"""`hetero-hvd top` on a terminal; the only module that imports textual."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from hetero_hvd.cli.watch.live_table import table_of
from hetero_hvd.core.printable import printable
from hetero_hvd.core.view.live import LiveState
from hetero_hvd.errors import JobError
from hetero_hvd.messages import STEP_PARTS

NUM_EVENTS = 30


class Screen(App[None]):
    """Looks again at each interval.

    Args:
        source: Gives the state; may block, so it runs in a thread.
        interval_seconds: Between two looks.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit")]

    def __init__(self, source: Callable[[], LiveState], *, interval_seconds: float) -> None:
        super().__init__()
        self._source = source
        self._interval_seconds = interval_seconds

    def compose(self) -> ComposeResult:
        """The widgets."""
        with VerticalScroll():
            yield Static(id="table")
        yield Footer()

    def on_mount(self) -> None:
        """Look now, and then regularly."""
        self._look()
        self.set_interval(self._interval_seconds, self._look)

    def _look(self) -> None:
        self.run_worker(self._fetch, thread=True, exclusive=True)

    def _fetch(self) -> None:
        try:
            text = coloured(self._source())
        except JobError as error:
            text = Text(printable(f"{error}; trying again"))
        self.call_from_thread(self.query_one("#table", Static).update, text)


def coloured(state: LiveState) -> Text:
    """The table with its bars in colour."""
    text = Text("\n".join(table_of(state, num_events=NUM_EVENTS)), no_wrap=True)
    for part in STEP_PARTS:
        bar = re.escape(part.letter) + "{3,}"  # no word has three
        text.highlight_regex(bar, f"{part.terminal_colour} reverse")
    return text


def show(source: Callable[[], LiveState], *, interval_seconds: float) -> None:
    """Until the user leaves."""
    Screen(source, interval_seconds=interval_seconds).run()
