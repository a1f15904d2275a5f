"""Tables of text that is not ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetero_hvd.core.printable import printable


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; what is in it cannot make the terminal do anything.

    Args:
        headings: Of the columns.
        rows: A cell for each column; a line break in one begins a new line.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import, needed here only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(map(printable, cell.split("\n")))) for cell in row))
    Console().print(table)
