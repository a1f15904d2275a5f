"""Tables of text that is not ours."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hvd.core.printable import printable


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


def _width(cells: Sequence[str]) -> int:
    """Of the longest line."""
    return max(len(line) for cell in cells for line in cell.split("\n"))
