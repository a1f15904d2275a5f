"""However the starts of a job follow each other, `--resume auto` loses nothing that was kept."""

from itertools import product
from pathlib import Path

import pytest
import torch

from hetero_hvd.config import JobConfig
from hetero_hvd.driver.workers.worker_launch import _checkpoints
from hetero_hvd.errors import JobError
from hetero_hvd.messages import CheckpointWritten, RunStarted
from hetero_hvd.run.records.earlier_run import CHECKPOINTS, earlier_run, run_of_folder
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica
from tests.run.records.test_records import write

ENDS = "keeps a state", "is killed before it keeps one"
FIRST = list(product(("plain", "auto"), ENDS))
LATER = list(product(("auto", "resume"), ENDS))
STARTS = [
    [first, *others] for first in FIRST for num in (1, 2) for others in product(LATER, repeat=num)
]


def resumed(order, output, url):
    """What a start so ordered is to go on from."""
    if order == "plain":
        return None
    if order == "folder":
        return earlier_run(output)
    return run_of_folder(output) if order == "auto" else earlier_run(url or output)


def start(order, output, url, num_kept):
    """One start of a job, which keeps a state after each of so many steps; how many it found."""
    settings = _checkpoints(JobConfig(checkpoint_url=url), output, resumed(order, output, url))
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    checkpoints = Checkpoints(settings, Replica({"model": model}))
    checkpoints.load_newest()
    found = int(model.weight)
    for step in range(found + 1, found + 1 + num_kept):
        torch.nn.init.constant_(model.weight, step)
        checkpoints.save(step)
        checkpoints.wait()
    return found


@pytest.mark.parametrize("has_folder", [True, False], ids=["folder", "store"])
def test_auto_goes_on_from_the_newest_checkpoint_of_the_job(tmp_path, monkeypatch, has_folder):
    """Whoever kept it: a start like it, a plain one, or one that was told where to go on."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    for number, starts in enumerate(STARTS):
        place = tmp_path / f"{number}"
        output = place / "one"
        (output / CHECKPOINTS).mkdir(parents=True)
        url = None if has_folder else (place / "store").as_uri()
        if url:  # which it shares with a longer job
            assert start("plain", Path("another"), url, num_kept=9) == 0
        num_kept = 0
        for order, end in starts:
            is_kept = end == ENDS[0]
            found = start(order, output, url, num_kept=is_kept)
            if order == "auto":
                assert found == num_kept, starts
            num_kept = found + 1 if is_kept else num_kept
        assert start("auto", output, url, num_kept=0) == num_kept, starts


@pytest.mark.parametrize("places", list(product(("folder", "store"), repeat=4)), ids=" ".join)
def test_nothing_is_lost_where_the_place_of_checkpoints_changes(tmp_path, monkeypatch, places):
    """Some starts have a `checkpoint_url`, others none: `auto` says so, and RUN goes on."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    output, store = tmp_path / "one", tmp_path / "store"
    output.mkdir()
    assert start("plain", Path("another"), store.as_uri(), num_kept=9) == 0
    for number, (before, place) in enumerate(zip((places[0], *places), places, strict=False)):
        url = f"{store.as_uri()}/" if place == "store" else None
        if before != place:
            with pytest.raises(JobError, match="auto: the newest checkpoint of this run is in"):
                start("auto", output, url, num_kept=1)
        order = "auto" if before == place else "folder"
        assert start(order, output, url, num_kept=1) == number
        (path,) = (store if url else output / CHECKPOINTS).glob(f"step-{number + 1:012d}-*")
        kept = CheckpointWritten(
            step=number + 1, path=str(path), num_bytes=1, metrics={}, is_best=False
        )
        settings = {"checkpoint_url": str(url)}
        write(output, RunStarted(run_id="r", command=(), nodes=(), settings=settings), kept)
