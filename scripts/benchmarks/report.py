"""The benchmark's page, plots and JSON, from measurements only."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.again import STORE, Measured, measured_of, rows_of
from benchmarks.numbers import Number
from benchmarks.tables import Table

ABOUT = """\
# Benchmarks

Written by `scripts/bench`; every figure is measured. Ratios of one harness, medians of interleaved
turns with their range; absolute times say nothing about another machine. `ours` starts without any
knowledge; `static` has speeds that were measured beforehand, `oracle` the best plan by hand; `lbb`
and `omnilearn` are the published rules on our runtime; `uniform` is ours with even shares,
`horovod` and `ddp` are plain frameworks. `horovod` runs on our build of it, which waits and sums
small tensors faster than the stock one.

Tables are of the newest run. Where there are several, `scripts/bench --again PART` has measured
anew: the spread of a quantity is the range of all turns of all earlier runs, and a further run
agrees if its own range meets it.""".splitlines()

MEASURED = ("hetero_hvd", "scripts/benchmarks", "tests/kit")
"""What a figure depends on: a change there that is not committed is told."""

RAW = Path("build", "benchmarks")
"""Steps, plans and busy seconds of the newest runs; not for the repository."""

NUMBER_COLUMNS = ("quantity", "goal", "found", "reached")

BAR_HEIGHT, BAR_WIDTH, LABEL_WIDTH = 22, 420, 110


def header(command: Sequence[str]) -> dict[str, str]:
    """What a reader needs to judge the figures."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "command": " ".join(command),
        "commit": _git("rev-parse", "--short=12", "HEAD")
        + (" with changes" if _git("status", "--porcelain", "--", *MEASURED) else ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{os.cpu_count()} cores, {model}, Linux {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def write(
    folder: Path,
    facts: Mapping[str, str],
    part: str,
    tables: Sequence[Table],
    *,
    earlier: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
) -> list[Measured]:
    """Write benchmarks.md, its plots and results.json; other parts stay as they are.

    What the cells were computed from, step by step, is left in `RAW` for whoever asks why.

    Args:
        folder: The docs folder.
        facts: From `header`.
        part: What was measured.
        tables: What was found.
        earlier: From `kept_runs`: runs of the same code that this one stands beside.
        settings: How much was measured; see `tables_kept`.

    Returns:
        What each run of the part has measured, this one the last.
    """
    store = folder / STORE
    store.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(store.read_text()) if store.exists() else {}
    run = {"header": dict(facts), "measured": measured_of(tables)}
    found = [asdict(table) for table in tables]
    raw = {table["title"]: rows for table in found if (rows := table.pop("raw"))}
    if raw:
        RAW.mkdir(parents=True, exist_ok=True)
        (RAW / f"{part}.json").write_text(json.dumps(raw))
    kept[part] = {"tables": found, "runs": [*earlier, run], "settings": settings or {}}
    for table in tables:
        if table.bars:
            (folder / "benchmarks" / f"{part}.svg").write_text(bars(table.title, table.bars))
    store.write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "benchmarks.md").write_text("\n".join(_page(kept)) + "\n")
    return [each["measured"] for each in kept[part]["runs"]]


def tables_kept(
    folder: Path, facts: Mapping[str, str], part: str, settings: Mapping[str, Any]
) -> list[Table]:
    """The whole tables of a part that were measured with these settings at this commit.

    Args:
        folder: The docs folder.
        facts: From `header`; a commit with changes is like no other.
        part: What was measured.
        settings: How much is to be measured.
    """
    store = folder / STORE
    kept = json.loads(store.read_text()).get(part, {}) if store.exists() else {}
    if not kept or kept.get("settings") != settings or facts["commit"].endswith("with changes"):
        return []
    if kept["runs"][-1]["header"]["commit"] != facts["commit"]:
        return []
    tables = [
        Table(**each | {"numbers": [Number(**number) for number in each["numbers"]]})
        for each in kept["tables"]
    ]
    return [table for table in tables if table.is_whole]


def _page(kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines, body = [*ABOUT, "", "## Numbers to beat", "", *_head(NUMBER_COLUMNS)], []
    for part, stored in kept.items():
        for table in stored["tables"]:
            for number in table["numbers"]:
                cells = (number["quantity"], number["goal"], number["found"])
                lines.append(_line([*cells, "yes" if number["is_reached"] else "NO"]))
            body += ["", f"## {table['title']}", "", table["text"], ""]
            body += [*_head(table["columns"]), *map(_line, table["rows"])]
            if table["bars"]:
                body += ["", f"![{table['title']}](benchmarks/{part}.svg)"]
        body += ["", _in_words(stored["runs"][-1]["header"]), *_runs(stored["runs"])]
    return lines + body


def _runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All runs of a part beside each other."""
    rows = rows_of([run["measured"] for run in runs])
    if not rows:
        return
    yield from ("", "Runs, the oldest first, and whether the newest agrees with those before it:")
    heads = [f"{run['header']['date']}, {run['header']['commit']}" for run in runs]
    yield from ("", *_head(["quantity", *heads, "agrees"]))
    agrees = {None: "", True: "yes", False: "NO"}
    yield from (_line([*row.cells, agrees[row.agrees]]) for row in rows)


def _head(columns: Sequence[str]) -> list[str]:
    return [_line(columns), "|---" * len(columns) + "|"]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_words(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


def bars(title: str, values: Mapping[str, float]) -> str:
    """A bar chart of ratios, 0 to 1, as SVG."""
    width, height = LABEL_WIDTH + BAR_WIDTH + 60, BAR_HEIGHT * (len(values) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        "<style>text {font: 13px sans-serif}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="4" y="16" font-weight="bold">{escape(title)}: share of the ideal</text>',
    ]
    for index, (label, value) in enumerate(values.items(), 1):
        y = BAR_HEIGHT * index + 4
        parts.append(
            f'<text x="{LABEL_WIDTH - 6}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{BAR_WIDTH * value:.1f}" '
            f'height="{BAR_HEIGHT - 5}" fill="{"#2a7" if label == "ours" else "#89a"}"/>'
            f'<text x="{LABEL_WIDTH + BAR_WIDTH * value + 5:.1f}" y="{y + 14}">{value:.3f}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return ""
    return done.stdout.strip()
