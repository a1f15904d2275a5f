"""What the last lines of a job say of its newest checkpoint."""

import pytest

from hetero_hvd.driver.ending import newest_in_words
from hetero_hvd.messages import CheckpointWritten, RunStarted
from tests.run.records.test_records import write

NAME = "step-000000000012-b7795d16"
URL = "s3://bucket/runs"
PLACES = {
    "in the run's folder": ("{out}/checkpoints", "", True, True),
    "there, and the job is started again by others": ("{out}/checkpoints", "", False, False),
    "on another machine": ("/elsewhere/out/checkpoints", "", True, True),
    "in a store": (URL, URL, True, True),
    "in a store, and the record has been lost": (URL, None, True, False),
    "in a store that is a folder": ("/mnt/our runs", "file:///mnt/our%20runs", True, True),
}
"""Where it was written, the `checkpoint_url`, if that is recorded, whether the user starts the job
again, and whether --resume is named."""


@pytest.mark.parametrize("case", PLACES)
def test_only_what_resume_finds_is_said_to_be_found_so(tmp_path, monkeypatch, case):
    """Else where it is, which is true in any case."""
    monkeypatch.chdir(tmp_path)
    place, url, may_resume, is_named = PLACES[case]
    output = tmp_path / "a run"
    path = f"{place.format(out=output)}/{NAME}"
    written = CheckpointWritten(step=12, path=path, num_bytes=1, metrics={}, is_best=False)
    started = RunStarted(run_id="r", command=("x",), nodes=(), settings={"checkpoint_url": url})
    output.mkdir()
    if url is not None:
        write(output, started, written)
    if "out" in place and "elsewhere" not in place:
        (output / "checkpoints").mkdir()
    words = newest_in_words(written, output.relative_to(tmp_path), may_resume=may_resume)
    more = f" --checkpoint-url {url}" if url else ""
    way_on = f"; to go on from it add --resume 'a run'{more} before the script" if is_named else ""
    assert words == f"newest checkpoint: {path}{way_on}"
