"""Part `bits`: the reproducible mode, on the card alone, and refused where devices differ."""

from __future__ import annotations

import hashlib
import json

from gpu_check.clusters import Run, train
from gpu_check.site import Check, CheckError, Figure, Site

FLAGS = ("--reproducible", "--grain", "16", "--fingerprint-steps", "4")
JOB = {"precision": "float32", "width": 256, "batch": 128, "epochs": 4}


def digest(run: Run) -> str:
    """Of all that the fingerprints of a run say of its states."""
    lines = (run.folder / "out" / "fingerprints.jsonl").read_text().splitlines()
    parts = [json.loads(line) for line in lines]
    if not parts:
        raise CheckError(f"no fingerprint was taken: see {run.folder}")
    states = [{k: v for k, v in part.items() if k not in {"numerics", "host"}} for part in parts]
    return hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()[:16]


def same(site: Site) -> Figure:
    """Two runs on the card; without a card, two on one and on three CPU workers."""
    second = ("card",) if site.has_card else ("card", "cpu1", "cpu2")
    runs = [
        train(site, f"bits-{number}", nodes=nodes, flags=FLAGS, **JOB)
        for number, nodes in enumerate((("card",), second))
    ]
    found = [digest(run) for run in runs]
    if len(set(found)) != 1:
        raise CheckError(f"two runs gave different bits: {found}")
    losses = [run.card["losses"] for run in runs]
    if losses[0] != losses[1]:
        raise CheckError(f"two runs gave different losses: {losses}")
    return Figure(float(len(losses[0])), "equal steps", {"fingerprint": found[0]})


def mixed(site: Site) -> Figure:
    """A card and a CPU cannot give the same bits: the job is refused, by name."""
    run = train(site, "bits-mixed", nodes=("card", "cpu1"), flags=FLAGS, expected_code=None, **JOB)
    line = next((each for each in run.printed.splitlines() if "would differ" in each), "")
    if not line or run.left:
        raise CheckError(f"it was not refused: see {run.folder}/printed")
    return Figure(1.0, "refused", {"said": line})


CHECKS = {
    "same-bits": Check(same, "reproducible mode: two runs have the same fingerprint"),
    "mixed-refused": Check(mixed, "reproducible mode: card and CPU are refused", needs_card=True),
}
