"""report.html: one file with everything in it, to be opened anywhere, also without a network."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.run.records.run_files import private
from hetero_hvd.run.reports.series import Series, series_of

FILE = "report.html"
PAGE = Path(__file__).with_name("page")


def write_report(run: Path) -> None:
    """Write the page of a run into its folder.

    Raises:
        JobError: The run cannot be read, or the page not written.
    """
    try:
        with open(run / FILE, "w", encoding="utf-8", opener=private) as file:
            file.write(page_of(series_of(run)))
    except OSError as error:
        raise JobError(f"{run / FILE}: {error.strerror}") from error


def write_page(series: Series, path: Path) -> None:
    """Write the page.

    Raises:
        JobError: The file cannot be written.
    """
    try:
        path.write_text(page_of(series), encoding="utf-8")
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error


def page_of(series: Series) -> str:
    """The page. All text of the run reaches it as data, never as markup."""
    data = msgspec.json.encode(series).decode().replace("<", "\\u003c")  # ends no script element
    page = (PAGE / "report.html").read_text(encoding="utf-8")
    for mark, content in (
        ("/*STYLE*/", (PAGE / "report.css").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", (PAGE / "report.js").read_text(encoding="utf-8")),
        ("/*DATA*/", data),
    ):
        page = page.replace(mark, content)
    return page
