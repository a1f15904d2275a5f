"""Checks on a real accelerator, beside CPU workers: the parts, their records and the table.

Needs the standard library only, a Python with torch, and what `--pack` has gathered. Run by
`scripts/gpu-check`; works in `.gpu-check` of the checkout, which may be copied as a whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from gpu_check import (
    bits,
    device,
    examples,
    faults,
    installing,
    nccl,
    speed,
    trainers,
    training,
)
from gpu_check.packing import pack
from gpu_check.site import (
    PART_SECONDS,
    PLACE,
    PYTHONS,
    VENV,
    WHOLE_SECONDS,
    Check,
    CheckError,
    Site,
    Skipped,
    fail,
)

FOUND = PLACE / "found.json"
PARTS: Mapping[str, ModuleType] = {
    "install": installing,
    "device": device,
    "training": training,
    "trainers": trainers,
    "faults": faults,
    "bits": bits,
    "speed": speed,
    "examples": examples,
    "nccl": nccl,
}
DEVICES = ("auto", "cuda", "xpu", "cpu")
LEAST_SECONDS = 10.0
"""With less of its part left, or of the whole, a check is not begun."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument(
        "--pack", nargs="+", metavar="VERSION", help="gather packages, with network"
    )
    parser.add_argument(
        "--device", default="auto", metavar="KIND", help=f"of {', '.join(DEVICES)}; cpu: rehearse"
    )
    parser.add_argument(
        "--installed", action="store_true", help="use what this Python has instead of `install`"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        fail(f"unknown part {unknown[0]!r}: must be of {', '.join(PARTS)}")
    if given.device not in DEVICES:
        fail(f"--device {given.device}: must be of {', '.join(DEVICES)}")
    if given.installed and "install" in given.parts:
        fail("--installed: leave out the part install, or the flag")
    for version in given.pack or ():
        if version not in PYTHONS:
            fail(f"--pack {version}: must be of {', '.join(PYTHONS)}")
    return given


def answer(check: Check, site: Site) -> dict[str, Any]:
    """Make a check that can be made; the record of one that passes."""
    if check.needs_card and not site.has_card:
        raise Skipped("no card")
    if site.left_seconds < LEAST_SECONDS:
        raise Skipped(
            f"no time left of the part's {PART_SECONDS / 60:g} minutes, or of the whole's "
            f"{WHOLE_SECONDS / 60:g}: run the part by itself"
        )
    value, unit, facts = check.run(site)
    return {"result": "pass", "value": value, "unit": unit, "facts": facts}


def judge(check: Check, site: Site) -> dict[str, Any]:
    """The record of a check, whatever comes of it."""
    began = time.monotonic()
    try:
        record = answer(check, site)
    except Skipped as reason:
        record = {"result": "skipped", "reason": str(reason)}
    except (CheckError, OSError, LookupError, ValueError) as error:
        kind = "" if isinstance(error, CheckError) else f"{type(error).__name__}: "
        record = {"result": "fail", "reason": f"{kind}{error}"}
    return record | {"about": check.about, "seconds": round(time.monotonic() - began, 1)}


def save(records: dict[str, Any]) -> None:
    """Keep what was found so far, whole or not at all."""
    partial = FOUND.with_suffix(".partial")
    partial.write_text(json.dumps(records, indent=2) + "\n")
    partial.replace(FOUND)


def line(name: str, record: Mapping[str, Any]) -> str:
    """A row of the table."""
    figure = f"{record['value']:.4g} {record['unit']}" if "value" in record else ""
    return f"{name:<30}{record['result']:<9}{record['seconds']:>6.1f} s  " + (
        figure or record["reason"]
    )


def main() -> None:
    """Run the parts that were asked for; exit code 1 if a check failed."""
    given = arguments()
    if given.pack:
        pack(given.pack)
        return
    PLACE.mkdir(exist_ok=True)
    python, facts = installing.find_python(given.device)
    has_venv = (VENV / "bin/python").is_file()
    parts = given.parts or [name for name in PARTS if name != "install" or not given.installed]
    if not given.installed and parts[0] != "install":
        if not has_venv:
            fail(f"{VENV} is missing: run scripts/gpu-check install first, or give --installed")
        python = str(VENV / "bin/python")
    records = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
    machine = facts | {"device": facts["device"], "date": datetime.now(UTC).date().isoformat()}
    print(f"{machine['name'] or 'no card: CPU workers'}, torch {facts['torch']}", flush=True)
    results = []
    ends_at = time.monotonic() + WHOLE_SECONDS
    for part in parts:
        site = Site(device=facts["device"], python=python, ends_at=ends_at)
        for name, check in PARTS[part].CHECKS.items():
            record = judge(check, site)
            records[f"{part}/{name}"] = record | {"machine": machine}
            save(records)
            print(line(f"{part}/{name}", record), flush=True)
            results.append(record["result"])
        python = site.python
    counts = ", ".join(f"{results.count(each)} {each}" for each in ("pass", "fail", "skipped"))
    print(f"{counts}; all of it: {FOUND}")
    sys.exit(1 if "fail" in results else 0)


if __name__ == "__main__":
    main()
