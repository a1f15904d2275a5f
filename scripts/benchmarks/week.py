"""How large the folder of a week's run becomes, and how long its report takes."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.run.reports.html import FILE, write_report
from tests.kit.long_run import WEEK_SECONDS, LongRun, record, size_bytes

MAX_FOLDER_BYTES = 200 * 2**20
MAX_REPORT_SECONDS = 2.0
DATA = '<script type="application/json" id="data">'


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=WEEK_SECONDS / 3600, help="default: a week")
    arguments = parser.parse_args()
    seconds = arguments.hours * 3600
    run = LongRun(num_steps=round(10_000_000 * seconds / WEEK_SECONDS), seconds=seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        number = record(folder, run)
        written = time.perf_counter()
        write_report(folder)
        reported = time.perf_counter() - written
        _read(folder / FILE)
        opened = time.perf_counter() - written
        size = size_bytes(folder)
        show(f"{run.num_steps} steps of {run.num_nodes} nodes in {arguments.hours:g} hours:")
        show(f"{number} events recorded in {written - began:.0f} s")
        show(f"folder {size / 2**20:.1f} MiB")
        for path in sorted(folder.iterdir()):
            show(f"  {path.name:24} {path.stat().st_size / 2**20:8.1f} MiB")
        show(f"report written in {reported:.2f} s, its data read after {opened:.2f} s")
    return int(size >= MAX_FOLDER_BYTES or opened >= MAX_REPORT_SECONDS)


def _read(page: Path) -> None:
    """As a browser does, without what it draws."""
    text = page.read_text()
    begin = text.index(DATA) + len(DATA)
    json.loads(text[begin : text.index("</script>", begin)])


if __name__ == "__main__":
    sys.exit(main())
