"""report.html: one file with everything in it, to be opened anywhere, also without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

import msgspec

from hetero_hvd.errors import JobError
from hetero_hvd.run.records.run_files import private
from hetero_hvd.run.reports.series import ReportContent, report_of

FILE = "report.html"
SHARED = Path(__file__).parents[1] / "page"
PAGE = Path(__file__).with_name("page")
STYLES = (
    SHARED / "page.css",
    SHARED / "uPlot.min.css",
    SHARED / "plot.css",
    SHARED / "board.css",
    PAGE / "report.css",
)
SCRIPTS = (
    SHARED / "uPlot.LICENSE",
    SHARED / "uPlot.iife.min.js",
    SHARED / "page.js",
    SHARED / "plot.js",
    SHARED / "board.js",
    PAGE / "report.js",
)


def write_report(run: Path) -> None:
    """Write the page of a run into its folder.

    Raises:
        JobError: The run cannot be read, or the page not written.
    """
    try:
        with open(run / FILE, "w", encoding="utf-8", opener=private) as file:
            file.write(page_of(report_of(run)))
    except OSError as error:
        raise JobError(f"{run / FILE}: {error.strerror}") from error


def write_page(report: ReportContent, path: Path) -> None:
    """Write the page.

    Raises:
        JobError: The file cannot be written.
    """
    try:
        path.write_text(page_of(report), encoding="utf-8")
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error


def page_of(report: ReportContent) -> str:
    """The page. All text of the run reaches it as data, never as markup."""
    style, script = (_joined(files) for files in (STYLES, SCRIPTS))
    # Whatever a defect might let through: a browser runs these scripts only, and asks nobody.
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}"
    data = msgspec.json.encode(report).decode().replace("<", "\\u003c")  # ends no script element
    page = (PAGE / "report.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(report.name or report.run_id),
        "POLICY": policy,
        "STYLE": style,
        "SCRIPT": script,
        "DATA": data,
    }
    return re.sub(r"/\*([A-Z]+)\*/", lambda mark: parts[mark[1]], page)  # none within a part


def _joined(files: tuple[Path, ...]) -> str:
    texts = [path.read_text(encoding="utf-8") for path in files]
    return "\n".join(
        f"/*\n{text}*/" if path.suffix == ".LICENSE" else text
        for path, text in zip(files, texts, strict=True)
    )


def _digest(text: str) -> str:
    """By which a browser knows an element's text."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
