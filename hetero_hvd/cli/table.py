"""Tables of text that is not ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from shutil import get_terminal_size

from hetero_hvd.core.printable import printable

BETWEEN = "  "
MIN_SENTENCE = 24
"""Cells of a sentence that is cut; one of fewer says nothing."""


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, ends_in_sentences: bool = False
) -> None:
    """Print a table; what is in it cannot make the terminal do anything.

    Args:
        headings: Of the columns.
        rows: A cell for each column; a line break in one begins a new line.
        ends_in_sentences: Whether the last column has what the others leave, and on a narrow
            terminal a third of it.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import, needed here only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console, table = Console(), Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    if ends_in_sentences:
        widths = [_width(column) for column in zip(headings, *rows, strict=True)]
        borders = 3 * len(headings) + 1
        left = max(console.width - sum(widths[:-1]) - borders, console.width // 3)
        table.columns[-1].width = min(left, widths[-1])
    for row in rows:
        table.add_row(*(Text("\n".join(map(printable, cell.split("\n")))) for cell in row))
    console.print(table)


def print_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left_out_first: Sequence[str]
) -> list[str]:
    """Print a line for each row, so that `grep` and `sort` can read it, below the headings.

    On a terminal columns for which there is no room are left out, and the last one that stays is
    cut; elsewhere nothing is. A column without any cell is left out in any case.

    Args:
        headings: Of the columns.
        rows: A cell for each column.
        left_out_first: Columns that may be left out, in that order.

    Returns:
        The columns that were left out for want of room.
    """
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - slow to import

    lines = [list(map(str.upper, headings)), *([printable(cell) for cell in row] for row in rows)]
    columns = {name: [line[at] for line in lines] for at, name in enumerate(headings)}
    shown = {name: max(map(cell_len, cells)) for name, cells in columns.items() if any(cells[1:])}
    room = get_terminal_size().columns if sys.stdout.isatty() else None
    left_out = [name for name in left_out_first if name in shown]
    while room is not None and left_out and _needed(shown, headings[-1]) > room:
        del shown[left_out.pop(0)]
    for at in range(len(lines)):
        cells = [set_cell_size(columns[name][at], width) for name, width in shown.items()]
        line = BETWEEN.join(cells).rstrip()
        is_cut = room is not None and cell_len(line) > room
        print(f"{set_cell_size(line, room - 1).rstrip()}…" if is_cut and room else line)
    return [name for name in left_out_first if name not in shown and any(columns[name][1:])]


def _needed(widths: Mapping[str, int], sentences: str) -> int:
    """Cells of a line, of which the last column may be cut."""
    least = [min(w, MIN_SENTENCE) if name == sentences else w for name, w in widths.items()]
    return sum(least) + len(BETWEEN) * (len(least) - 1)


def _width(cells: Sequence[str]) -> int:
    """Of the longest line."""
    return max(len(line) for cell in cells for line in cell.split("\n"))
