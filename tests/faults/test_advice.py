"""An advice on a running job, its command carried out as it is printed, and what that brought."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

import pytest

from tests.kit.checkout import variables

from .conftest import BATCH

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STEP_SECONDS = 0.1
"""Of the fast node for a whole batch."""


def advise(job, *words):
    """What the command says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", "advise", str(job.folder / "out"), *words, "--json"],
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def speed(job, num_workers):
    """Samples per second of the later half of the steps that so many have taken together."""
    (file,) = job.folder.glob("trace-alpha-0.*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()[:-1]]
    ends = [at for at, _, _, workers, *_ in rows if workers == num_workers]
    ends = ends[len(ends) // 2 :]
    return BATCH * (len(ends) - 1) / (ends[-1] - ends[0])


def test_a_dear_slow_node_is_let_go_by_the_command_that_is_printed(start):
    """What it brings then is what was said."""
    nodes = [
        {
            "name": name,
            "slots": 1,
            "devices": [],
            "price_per_hour": 1.0,
            "emulate": {"seconds_per_sample": STEP_SECONDS / BATCH * slowness},
        }
        for name, slowness in (("alpha", 1), ("beta", 10))
    ]
    job = start(nodes=nodes, epochs=10_000, step_seconds=0.0)
    job.wait_for("2 workers train together", 100)
    deadline = time.monotonic() + 120
    while any("intervals were measured" in line for line in advise(job)["not_judged"]):
        assert time.monotonic() < deadline, advise(job)
        time.sleep(3)
    (advice,) = advise(job, "--for", "money")["advice"]
    assert advice["what"] == "leave beta out"
    money, speed_gain = (gain for gain in advice["gains"] if gain["goal"] in ("money", "speed"))
    assert money["goal"] == "money"
    subprocess.run(
        [sys.executable, "-m", *shlex.split(advice["command"].replace("hetero-hvd", "hetero_hvd"))],
        env=variables(),
        check=True,
    )
    job.wait_for("beta:0 has left", 60)
    time.sleep(60 * STEP_SECONDS)
    change = speed(job, 1) / speed(job, 2) - 1
    assert speed_gain["low"] - 0.03 <= change <= speed_gain["high"] + 0.03, (change, advice)
    cheaper = 1 - 1 / (2 * (1 + change))
    assert money["low"] - 0.03 <= cheaper <= money["high"] + 0.03, (cheaper, advice)
