"""An example of docs/examples as it is, with the time of each line that it prints of a step."""

from __future__ import annotations

import builtins
import json
import os
import runpy
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    """Run the script that job.json of the folder names; leave the seconds between its steps."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    at_seconds: list[float] = []
    losses: list[float] = []
    real_print = builtins.print

    def timed_print(*words: Any, **more: Any) -> None:  # noqa: ANN401 - the built-in one's
        now_seconds = time.perf_counter()
        real_print(*words, **more)
        if str(words[0]).startswith("step "):
            at_seconds.append(now_seconds)
            losses.append(float(str(words[0]).rpartition(" ")[2]))

    builtins.print = timed_print
    sys.argv = [job["example"], *job["arguments"]]
    os.chdir(folder)  # where a plain script leaves its checkpoint
    runpy.run_path(job["example"], run_name="__main__")
    name = os.environ.get("HETERO_HVD_WORKER", "alone")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    step_seconds = [later - earlier for earlier, later in pairwise(at_seconds)]
    left = {"device": device, "step_seconds": step_seconds, "losses": losses}
    (folder / f"left-{name}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main()
