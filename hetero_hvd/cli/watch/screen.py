"""`hetero-hvd top` on a terminal; the only module that imports textual."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from hetero_hvd.cli.watch.live_table import (
    NUM_SPARKS,
    SORTS,
    TablePiece,
    detail_of,
    in_order,
    pieces_of,
)
from hetero_hvd.core.printable import printable
from hetero_hvd.core.view.live import LiveState
from hetero_hvd.errors import UserError
from hetero_hvd.messages import STEP_PARTS

NUM_EVENTS = 30
COLOURS = {part.name: part.terminal_colour for part in STEP_PARTS}
HELP = """\
up, down   choose a worker
page up, page down   one that is a screen away
enter      all that is known of it, or no more
s          sort by the next column: name, share, step, late, speed
p          pause: look no more, until p is pressed again
d          let the chosen worker go (asks first)
?          this help
q          leave; the run goes on

A bar is one step of a worker; the longest one fills it, and each phase
begins with its letter. A dash is what nobody has measured."""

Order = Callable[[str], str]
"""Lets a worker go; gives what will happen in words."""


class Question(ModalScreen[bool]):
    """Something to read, or to answer by y.

    Args:
        words: What is asked.
    """

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Static { width: auto; max-width: 90%; height: auto; border: round $accent;
                      padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q,question_mark,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        """The words."""
        yield Static(Text(self._words))


class Screen(App[None]):
    """Looks again at each interval.

    Args:
        source: Gives the state; may block, so it runs in a thread.
        interval_seconds: Between two looks.
        drain: Lets a worker go; may block.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("s", "sort", "Sort"),
        Binding("enter", "detail", "Detail", priority=True),
        Binding("p", "pause", "Pause"),
        Binding("d", "drain", "Drain"),
        Binding("up", "choose(-1)", "Up", show=False, priority=True),
        Binding("down", "choose(1)", "Down", show=False, priority=True),
        Binding("pageup", "page(-1)", "Page up", show=False, priority=True),
        Binding("pagedown", "page(1)", "Page down", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, source: Callable[[], LiveState], *, interval_seconds: float, drain: Order
    ) -> None:
        super().__init__()
        self._source = source
        self._interval_seconds = interval_seconds
        self._drain = drain
        self._state: LiveState | None = None
        self._problem = ""
        self._history: dict[str, deque[float]] = {}
        self._sort = "name"
        self._chosen = ""
        self._has_detail = self._has_chosen = False
        self._line_of_chosen: int | None = None
        self._is_paused = False
        self._is_looking = False

    def compose(self) -> ComposeResult:
        """The widgets."""
        with VerticalScroll():
            yield Static(id="table")
        yield Footer()

    def on_mount(self) -> None:
        """Look now, and then regularly."""
        self._look()
        self.set_interval(self._interval_seconds, self._look)

    def on_resize(self, _: Resize) -> None:
        """There is room for more, or for less."""
        self._draw()

    def action_sort(self) -> None:
        """By the next column."""
        names = list(SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self._draw()

    def action_pause(self) -> None:
        """Look no more, or again."""
        self._is_paused = not self._is_paused
        self._look()
        self._draw()

    def action_detail(self) -> None:
        """Show all of the chosen worker, or no more."""
        if isinstance(self.screen, Question):
            self.screen.dismiss(False)
            return
        self._has_detail = not self._has_detail
        self._draw()

    def action_choose(self, by: int) -> None:
        """The worker above or below."""
        names = self._names
        if names:
            at = names.index(self._chosen) if self._chosen in names else -min(by, 0)
            self._chosen = names[max(0, min(len(names) - 1, at + by))]
            self._has_chosen = True
            self._draw()

    def action_page(self, by: int) -> None:
        """The worker a screen above or below."""
        self.action_choose(by * max(1, self.query_one(VerticalScroll).size.height - 2))

    def action_help(self) -> None:
        """What the keys do."""
        self.push_screen(Question(HELP))

    def action_drain(self) -> None:
        """Ask, and let the chosen worker go."""
        worker = self._chosen
        if not worker:
            self.notify("choose a worker with up and down first", severity="warning")
            return

        def answered(is_wanted: bool | None) -> None:
            if is_wanted:
                self.run_worker(lambda: self._order(worker), thread=True)

        words = f"Let {printable(worker)} go? It leaves after the step under way.\n\ny: yes   n: no"
        self.push_screen(Question(words), answered)

    @property
    def _names(self) -> list[str]:
        """Of the workers, as they are listed."""
        return [] if self._state is None else [w.name for w in in_order(self._state, self._sort)]

    def _order(self, worker: str) -> None:
        try:
            said, severity = self._drain(worker), "information"
        except UserError as error:
            said, severity = str(error), "error"
        self.call_from_thread(self.notify, printable(said), severity=severity, markup=False)

    def _look(self) -> None:
        if not (self._is_paused or self._is_looking):  # a slow source is asked once at a time
            self._is_looking = True
            self.run_worker(self._fetch, thread=True)

    def _fetch(self) -> None:
        state, problem = self._state, ""
        try:
            state = self._source()
        except UserError as error:
            problem = f"{error}; trying again"
        self.call_from_thread(self._take, state, problem)

    def _take(self, state: LiveState | None, problem: str) -> None:
        self._is_looking = False
        self._state = state
        self._problem = problem
        for worker in state.workers if state is not None and not problem else ():
            if worker.step_seconds is not None:
                line = self._history.setdefault(worker.name, deque(maxlen=NUM_SPARKS))
                line.append(worker.step_seconds)
        if self._chosen not in self._names:
            self._chosen = next(iter(self._names), "")
        self._draw()

    def _draw(self) -> None:
        """Show the state as it was last heard of."""
        text = Text(no_wrap=True)
        state = self._state
        if self._is_paused:
            text.append("paused: p goes on\n", "bold")
        if self._problem:
            text.append(f"{printable(self._problem)}\n", "bold red")
        line = None if state is None else self._draw_state(text, state)
        self.query_one("#table", Static).update(text)
        self._line_of_chosen = line
        if line is not None:
            self.call_after_refresh(self._show_line, line)

    def _show_line(self, line: int) -> None:
        """Scroll as far as it takes to see the chosen worker; where all fits nothing moves."""
        view = self.query_one(VerticalScroll)
        view.scroll_to_region(Region(0, line, 1, 1), animate=False)

    def _draw_state(self, text: Text, state: LiveState) -> int | None:
        """Append it; gives the line of a worker that somebody has chosen."""
        chosen_at = None
        room = self.size.width - 2  # the scroll bar
        if self._sort != "name":
            text.append(f"sorted by {self._sort}\n", "dim")
        lines = pieces_of(
            state,
            num_events=NUM_EVENTS,
            num_columns=room,
            sort=self._sort,
            history=self._history,
        )
        slow = {worker.name for worker in state.workers if worker.slow_since_step is not None}
        for line in lines:
            if self._has_chosen and line[0].worker and line[0].worker == self._chosen:
                chosen_at = text.plain.count("\n")
            for piece in line:
                text.append_text(_coloured(piece, chosen=self._chosen, slow=slow))
            text.append("\n")
            if self._has_detail and line[0].worker and line[0].worker == self._chosen:
                (worker,) = (each for each in state.workers if each.name == self._chosen)
                text.append("".join(f"{each}\n" for each in detail_of(worker)))
        return chosen_at


def _coloured(piece: TablePiece, *, chosen: str, slow: Collection[str]) -> Text:
    """A phase as a block that begins with its letter; who is slow or chosen stands out."""
    if piece.part:
        block = f"{piece.text[:1]}{' ' * (len(piece.text) - 1)}"
        return Text(block, f"{COLOURS[piece.part]} reverse")
    colour = "yellow" if piece.worker in slow else ""
    return Text(piece.text, f"bold reverse {colour}" if piece.worker == chosen != "" else colour)


def show(source: Callable[[], LiveState], *, interval_seconds: float, drain: Order) -> None:
    """Until the user leaves."""
    Screen(source, interval_seconds=interval_seconds, drain=drain).run()
