"""report.html: one file with everything in it, to be opened anywhere, also without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

import msgspec

from hetero_hvd.errors import JobError, job_error
from hetero_hvd.run.reports.comparing.comparison import ComparedRuns
from hetero_hvd.run.reports.series import ReportContent, report_of
from hetero_hvd.whole_file import write_whole

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
)


def write_report(run: Path) -> None:
    """Write the page of a run into its folder, as a whole.

    Raises:
        JobError: The run cannot be read, or the page not written; one that is there stays.
    """
    page = page_of(report_of(run)).encode()
    try:
        write_whole(run / FILE, page)
    except OSError as error:
        raise _refused(run / FILE, error) from error


def write_page(content: ReportContent | ComparedRuns, path: Path) -> None:
    """Write the page.

    Raises:
        JobError: The file cannot be written.
    """
    try:
        path.write_text(page_of(content), encoding="utf-8")
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> JobError:
    return job_error(f"{path}: {error.strerror or error}", error)


def page_of(content: ReportContent | ComparedRuns) -> str:
    """The page of a run, or of several. All text of theirs reaches it as data, never as markup."""
    if isinstance(content, ReportContent):
        name, title = "report", content.name or content.run_id
    else:
        name, title = "compare", " · ".join(content.labels)
    style, script = _joined(STYLES), _joined((*SCRIPTS, PAGE / f"{name}.js"))
    # Whatever a defect might let through: a browser runs these scripts only, and asks nobody.
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}"
    data = msgspec.json.encode(content).decode().replace("<", "\\u003c")  # ends no script element
    page = (PAGE / f"{name}.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(title),
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
