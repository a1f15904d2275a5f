"""What the last lines of a job say of its newest checkpoint."""

import pytest

from hetero_hvd.driver.ending import newest_in_words
from hetero_hvd.messages import CheckpointWritten

NAME = "step-000000000012-b7795d16"
PLACES = {
    "in the run's folder": ("{out}/checkpoints/" + NAME, True, True),
    "there, and the job is started again by others": ("{out}/checkpoints/" + NAME, False, False),
    "there once, and gone": ("{out}/checkpoints/step-000000000013-00000000", True, False),
    "in a folder of that name on another machine": (
        "/elsewhere/out/checkpoints/" + NAME,
        True,
        False,
    ),
    "in another folder here": ("{out}/../kept/" + NAME, True, False),
    "in a store": ("s3://bucket/out/checkpoints/" + NAME, True, False),
}
"""Where it was written, whether the user starts the job again, and whether --resume is named."""


@pytest.mark.parametrize("case", PLACES)
def test_only_a_checkpoint_that_resume_finds_is_said_to_be_found_so(tmp_path, monkeypatch, case):
    """Else where it is, which is true in any case."""
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "a run"
    path, may_resume, is_named = PLACES[case]
    path = path.format(out=output)
    (output / "checkpoints" / NAME).mkdir(parents=True)
    (tmp_path / "kept" / NAME).mkdir(parents=True)
    written = CheckpointWritten(step=12, path=path, num_bytes=1, metrics={}, is_best=False)
    words = newest_in_words(written, output.relative_to(tmp_path), may_resume=may_resume)
    if is_named:
        way_on = "to go on from it add --resume 'a run' before the script"
        assert words == f"newest checkpoint: {NAME}; {way_on}"
    else:
        assert words == f"newest checkpoint: {path}"
