"""The benchmark's page, plots and JSON, from measurements only."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from hetero_hvd.bench.tables import Table

STORE = Path("benchmarks", "results.json")
"""All that was measured, in the docs folder."""

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
        + (" with changes" if _git("status", "--porcelain", "--", "hetero_hvd") else ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{os.cpu_count()} cores, {model}, Linux {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def write(folder: Path, facts: Mapping[str, str], tables: Mapping[str, Sequence[Table]]) -> None:
    """Write benchmarks.md, its plots and results.json; parts measured earlier are kept.

    Args:
        folder: The docs folder.
        facts: From `header`.
        tables: Part to its tables.
    """
    store = folder / STORE
    store.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(store.read_text()) if store.exists() else {}
    for part, found in tables.items():
        kept[part] = {"header": dict(facts), "tables": [asdict(table) for table in found]}
        for table in found:
            if table.bars:
                (folder / "benchmarks" / f"{part}.svg").write_text(bars(table.title, table.bars))
    _publish(folder, kept)


def write_again(folder: Path, facts: Mapping[str, str], part: str, lines: Sequence[str]) -> None:
    """Add to a part that was measured earlier how a second measurement compares."""
    kept = json.loads((folder / STORE).read_text())
    kept[part]["again"] = {"header": dict(facts), "lines": list(lines)}
    _publish(folder, kept)


def _publish(folder: Path, kept: Mapping[str, dict[str, object]]) -> None:
    (folder / STORE).write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "benchmarks.md").write_text("\n".join(_page(kept)) + "\n")


def _page(kept: Mapping[str, dict[str, object]]) -> list[str]:
    lines = [
        "# Benchmarks",
        "",
        "Written by `scripts/bench`; every figure is measured. Ratios of one harness, medians of",
        "interleaved runs with their range; absolute times say nothing about another machine.",
        "`ours` starts without any knowledge; `static` has speeds that were measured beforehand,",
        "`oracle` the best plan by hand; `lbb` and `omnilearn` are the published rules on our",
        "runtime; `uniform` is ours with even shares, `horovod` and `ddp` are plain frameworks.",
        "The spread of a row is the range of its repeats; `scripts/bench --again PART` measures",
        "anew and tells which rows' ranges lie apart from the kept ones. `horovod` runs on our",
        "build of it, which waits and sums small tensors faster than the stock one.",
        "",
        "## Numbers to beat",
        "",
        "| quantity | goal | found | reached |",
        "|---|---|---|---|",
    ]
    body: list[str] = []
    for part, stored in kept.items():
        facts, tables = stored["header"], stored["tables"]
        assert isinstance(facts, dict)  # noqa: S101 - we wrote it
        assert isinstance(tables, list)  # noqa: S101
        for table in tables:
            for number in table["numbers"]:
                cells = (number["quantity"], number["goal"], number["found"])
                lines.append(f"| {' | '.join(cells)} | {'yes' if number['is_reached'] else 'NO'} |")
            body += ["", f"## {table['title']}", "", table["text"], ""]
            body += [f"| {' | '.join(table['columns'])} |", "|---" * len(table["columns"]) + "|"]
            body += [f"| {' | '.join(row)} |" for row in table["rows"]]
            if table["bars"]:
                body += ["", f"![{table['title']}](benchmarks/{part}.svg)"]
        body += ["", _in_words(facts)]
        if again := stored.get("again"):
            assert isinstance(again, dict)  # noqa: S101
            body += ["", "Measured again:", "", *(f"- {line}" for line in again["lines"])]
            body += ["", _in_words(again["header"])]
    return lines + body


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
