"""`hetero-hvd submit`: all that is wrong is told at once."""

from __future__ import annotations

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import AllWrong, JobError, TryAgainError, UserError

NO_QUEUE = "no queue is here"
NO_COMMAND = "no command: hetero-hvd submit"
NO_IMAGE = "--image: found None, must be NAME@sha256:DIGEST"
LACKS = {
    "": [NO_COMMAND, NO_QUEUE],
    "train.py": [NO_QUEUE],
    "trian.py": ["trian.py: no such file in", NO_QUEUE],
    "--min x --max 0 --priority urgent train.py": [
        "--min: found 'x', must be an integer above 0",
        "--max: found '0', must be an integer above 0",
        "--priority: found 'urgent', must be high or normal or low",
        NO_QUEUE,
    ],
    "--min 4 --max 2 --image a --folder b train.py": [
        "--folder: goes with --to only",
        "--image: goes with --to only",
        "--max: found 2, must be at least 4, as --min",
        NO_QUEUE,
    ],
    "--retries x --deadline -1h --time-limit 5 --after x --array x train.py": [
        "--after: found 'x', must be numbers such as",
        "--deadline: found '-1h', must be a time above 0",
        "--time-limit: found '5', must be a time above 0",
        "--retries: found 'x', must be an integer of at least 0",
        "--array: found 'x', must be numbers such as",
        NO_QUEUE,
    ],
    "--needs memory --needs colour==red --idle-limit 1h train.py": [
        "needs: found 'memory', must be a condition such as",
        "needs: found 'colour==red', must be a condition such as",
        "submit: idle_limit: is of commands (--devices)",
        NO_QUEUE,
    ],
    "--min 0 --checkpoint-seconds soon --staleness-bound -5 train.py": [
        "--min: found '0', must be an integer above 0",
        "settings: staleness_bound: found '-5', must be",
        "settings: checkpoint_seconds: found 'soon', must be",
        NO_QUEUE,
    ],
    "--min 0 --trials nowhere train.py": [
        "--min: found '0', must be an integer above 0",
        "--trials: nowhere: No such file or directory",
        NO_QUEUE,
    ],
    "--devices 1 --trials nowhere -- jupyter lab": ["--trials: is of trainings", NO_QUEUE],
    "--to kubernetes --checkpoint-seconds soon --staleness-bound -5 train.py": [
        "settings: staleness_bound: found '-5', must be",
        "settings: checkpoint_seconds: found 'soon', must be",
    ],
    "--devices 2 --max 4 --mode wait-free -- jupyter lab": [
        "--devices: takes the place of --min and --max",
        "submit: a command (--devices) has no settings of `hetero-hvd run`",
        "submit: a command on several devices needs them on one node",
        NO_QUEUE,
    ],
    "--to kubernetes": [NO_COMMAND, NO_IMAGE],
    "--to kubernetes --pool A_B --max 5000 --needs memory --after 3 --deadline 2h trian.py": [
        "--deadline: not with --to kubernetes",
        "--after: not with --to kubernetes",
        "trian.py: no such file in",
        "needs: found 'memory', must be a condition",
        NO_IMAGE,
        "--pool: found 'A_B', must be small letters",
        "--max: found '5000', must be an integer from 1 to",
    ],
    "--to slurm --retries 3 --max 5000 --needs memory>=1GiB --sbatch=--gpus=2 train.py": [
        "--retries: not with --to slurm",
        "--sbatch: found '--gpus=2': devices are said by --max and --needs",
        "--max: found '5000', must be an integer from 1 to",
        "--needs memory>=1GiB: not with --to slurm",
    ],
}


@pytest.mark.parametrize("line", LACKS)
def test_all_that_a_job_lacks_is_told_at_once(tmp_path, monkeypatch, capsys, line):
    """A line for each; only who lacks nothing but a queue may find one later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HETERO_HVD_QUEUE", raising=False)
    monkeypatch.setattr(
        "hetero_hvd.discovery.submission.queue_client.PLACES", (tmp_path / "a", tmp_path / "b")
    )
    (tmp_path / "train.py").touch()
    expected = LACKS[line]
    assert main(["submit", *line.split()]) == (75 if expected == [NO_QUEUE] else 2)
    said = capsys.readouterr().err.splitlines()
    told = [
        each.removeprefix("hetero-hvd: ")[: len(words)]
        for each, words in zip(said, expected, strict=False)
    ]
    assert told == expected, said
    assert len(said) == len(expected), said
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


RAISED = {
    "nothing": ([], None, []),
    "one": ([JobError("a")], JobError, ["a"]),
    "the same twice": ([UserError("a"), UserError("a", "b")], UserError, ["a", "b"]),
    "all may pass": ([TryAgainError("a"), TryAgainError("b")], TryAgainError, ["a", "b"]),
    "one may pass": ([TryAgainError("a"), JobError("b")], UserError, ["a", "b"]),
}


@pytest.mark.parametrize("name", RAISED)
def test_what_is_collected_is_one_error(name):
    """It may pass if all of it may."""
    errors, kind, lines = RAISED[name]
    wrong = AllWrong()
    for error in errors:
        with wrong.part():
            raise error
    if kind is None:
        wrong.check()
        return
    with pytest.raises(UserError) as found:
        wrong.check()
    assert (type(found.value), list(found.value.lines)) == (kind, lines)
