"""ResNet on images, BERT on GLUE, GPT-2 on text: each with us and without, on unequal workers."""

import difflib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.driver.trainer_job import (
    THREE,
    check_elastic,
    elastic_case,
    entries,
    record_of,
    run_command,
)
from tests.kit.fault_job import FaultJob

pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RUNNER = Path(__file__).parents[1] / "driver" / "example.py"
WORDS = [
    "good",
    "bad",
    "fine",
    "poor",
    "great",
    "awful",
    "plot",
    "actor",
    "scene",
    "ending",
    "music",
    "dull",
    "sharp",
    "warm",
    "cold",
]


def images(folder):
    """Two classes that differ in their colour, one file for each sample."""
    numbers = np.random.default_rng(0)
    for part, count in (("train", 32), ("val", 6)):
        for number in range(count):
            path = folder / part / ("blue" if number % 2 else "red") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = numbers.integers(0, 120, (20, 24, 3), dtype=np.uint8)
            pixels[..., 2 * (number % 2)] += 100
            Image.fromarray(pixels).save(path)


def sentences(folder):
    """SST-2's layout: a header, then sentence and label."""
    numbers = np.random.default_rng(0)
    for part, count in (("train", 48), ("dev", 12)):
        rows = ["sentence\tlabel"]
        for _ in range(count):
            words = numbers.choice(WORDS, numbers.integers(3, 9))
            rows.append(f"{' '.join(words)}\t{int('good' in words or 'great' in words)}")
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n")


def pairs(folder, splits, column, label_of):
    """The layout of tasks of two sentences: a header, then both and the label."""
    numbers = np.random.default_rng(0)
    for part, count in (("train", 48), *((split, 12) for split in splits)):
        rows = [f"sentence1\tsentence2\t{column}"]
        for _ in range(count):
            one, other = numbers.choice(WORDS, 5), numbers.choice(WORDS, 4)
            num_shared = len(set(one) & set(other))
            rows.append(f"{' '.join(one)}\t{' '.join(other)}\t{label_of(num_shared)}")
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n")


def scores(folder):
    """STS-B's: a score that is no class."""
    pairs(folder, ("dev",), "score", lambda num_shared: f"{num_shared * 1.25:.3f}")


def entailments(folder):
    """MNLI's: three classes, and two sets that are held out."""
    classes = ("neutral", "entailment", "contradiction")
    splits = ("dev_matched", "dev_mismatched")
    pairs(folder, splits, "gold_label", lambda num_shared: classes[min(num_shared, 2)])


def text(folder):
    """Sources of the standard library."""
    for name in ("textwrap", "queue", "bisect"):
        (folder / f"{name}.txt").write_text(
            Path(sys.modules["os"].__file__).with_name(f"{name}.py").read_text()
        )


class Case(NamedTuple):
    """An example.

    Attributes:
        name: Of its files.
        write: Makes its data.
        flags: That make it small.
        rel: Relative difference of losses that is allowed.
        held_out_abs: Difference of what is held out that is allowed; a correlation of a few nearly
            equal predictions magnifies what the losses do not show.
        in_float64: Whether the script takes PyTorch's default for its numbers.
        weights: Whether the script takes those of a checkpoint by `--weights`.
    """

    name: str
    write: object
    flags: str
    rel: float = 1e-6
    held_out_abs: float = 0.0
    in_float64: bool = True
    weights: bool = True

    def command(self, folder, name, *more, **faults):
        """What runs an example, with us or without, in a folder beside its data."""
        told = json.dumps({"in_float64": self.in_float64, **faults})
        script, data = EXAMPLES / f"{name}.py", folder.parent / "data"
        return [*map(str, (RUNNER, told, script, data)), *self.flags.split(), *more]


SMALL_BERT = "--layers 1 --heads 2 --width 16 --batch-size 8 --epochs 3 --lr 1e-3"
BY_TRANSFORMERS = {"in_float64": False, "weights": False}
HELD_OUT = re.compile(r"eval_(\w+_)?(loss|accuracy|pearson)")
CASES = [
    Case(
        "resnet",
        images,
        "--depths 1 1 1 1 --width 8 --pixels 64 --batch-size 8 --epochs 5 --lr 0.001 --in-order",
    ),
    Case(
        "gpt2",
        text,
        "--layers 1 --heads 2 --width 16 --block 32 --batch-size 24 --epochs 1 --in-order",
    ),
    Case("bert", sentences, SMALL_BERT, **BY_TRANSFORMERS),
    pytest.param(
        Case("bert", scores, f"{SMALL_BERT} --task stsb", held_out_abs=2e-3, **BY_TRANSFORMERS),
        marks=pytest.mark.matrix,
    ),
    pytest.param(
        Case("bert", entailments, f"{SMALL_BERT} --task mnli", **BY_TRANSFORMERS),
        marks=pytest.mark.matrix,
    ),
]


def told(folder, output):
    """Losses of the steps and what was found at the end of each epoch, in order."""
    losses = re.findall(r"^step \d+  loss (\S+)", output, re.MULTILINE)
    ends = re.findall(r"^epoch \d+  .* (\S+)$", output, re.MULTILINE)
    if not losses:  # transformers rounds what it prints
        states = folder.glob("bert/checkpoint-*/trainer_state.json")
        logs = max((json.loads(state.read_text())["log_history"] for state in states), key=len)
        losses = [each["loss"] for each in logs if "loss" in each]
        ends = [value for each in logs for name, value in each.items() if HELD_OUT.fullmatch(name)]
    return list(map(float, losses)), list(map(float, ends))


def run_alone(folder, case, name, *more):
    """What an example prints that no launcher has started."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, *case.command(folder, name, *more)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return told(folder, done.stdout)


def run_job(folder, case, names, *more, joining=(), settings=None, **faults):
    """The same by a job of unequal workers."""
    command = case.command(folder, case.name, *more, **elastic_case(names, joining), **faults)
    lost = tuple(faults.get("faults", ()))
    kept = {"checkpoint_seconds": 300} | (settings or {})
    run_command(folder, names, command, lost=lost, joining=joining, **kept)
    return told(folder, printed(folder / "out"))


def printed(folder):
    """What the workers of a run have printed; one of them leads."""
    logs = "".join(path.read_text() for path in sorted((folder / "logs").glob("*")))
    return re.sub(r"^\S+ \S+: ", "", logs, flags=re.MULTILINE)


def check_equal(found, plain, case):
    """The same losses and the same held-out results, as far as `plain` goes."""
    losses, ends = (theirs[-len(mine) :] for mine, theirs in zip(found, plain, strict=True))
    num_compared = 20 - (len(plain[0]) - len(losses))
    assert found[0][:num_compared] == pytest.approx(losses[:num_compared], rel=case.rel)
    assert found[1] == pytest.approx(ends, rel=10 * case.rel, abs=case.held_out_abs)


@pytest.fixture
def data(tmp_path, case):
    """An example's data."""
    folder = tmp_path / "data"
    folder.mkdir()
    case.write(folder)


def named(case):
    """For a test's name."""
    return f"{case.name} {case.write.__name__}"


TWO = ("alpha", "beta")
RESNET, GPT2, BERT = CASES[:3]


def only_with_all(*values):
    """A case that takes too long for each day."""
    return pytest.param(*values, marks=pytest.mark.matrix)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("case", [RESNET, *map(only_with_all, (GPT2, BERT)), *CASES[3:]], ids=named)
def test_alone_the_same_numbers_with_us_and_without(tmp_path, case):
    """Losses of the first 20 steps, and held-out results."""
    plain = run_alone(tmp_path / "plain", case, f"{case.name}_plain")
    assert len(plain[0]) >= 18
    assert plain[1]
    check_equal(run_alone(tmp_path / "alone", case, case.name), plain, case)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("case", [*map(only_with_all, (RESNET, GPT2, BERT)), *CASES[3:]], ids=named)
def test_the_same_numbers_on_workers_that_come_and_go(tmp_path, case):
    """On three, of which one is killed and comes back, and then a node joins.

    And what goes on from the other's checkpoint. GPT-2's loop is written out as ResNet's is; BERT
    is a script for transformers, on which tests/driver/test_huggingface.py does the same.
    """
    plain = run_alone(tmp_path / "plain", case, f"{case.name}_plain")
    faults = {"faults": {"gamma:0": "update 4"}, "join_step": 7}
    found = run_job(tmp_path / "three", case, THREE, joining=("delta",), **faults)
    assert len(found[0]) == len(plain[0])
    check_equal(found, plain, case)
    check_elastic(record_of(tmp_path / "three"), 4)
    if case.weights:
        ours = max((tmp_path / "three" / "out" / "checkpoints").glob("step-*/state.pt"))
        theirs = tmp_path / "plain" / "checkpoint.pt"
        going_on = [
            run_alone(tmp_path / "again", case, f"{case.name}_plain", "--weights", str(ours)),
            run_alone(tmp_path / "again", case, case.name, "--weights", str(theirs)),
        ]
        assert going_on[0][0][:5] == pytest.approx(going_on[1][0][:5], rel=1e-4)
    elif not case.held_out_abs:
        for folder, name in (("plain", case.name), ("three", f"{case.name}_plain")):
            kept = Path("bert", "checkpoint-6")
            shutil.copytree(tmp_path / folder / kept, tmp_path / f"from {folder}" / kept)
            rest = run_alone(tmp_path / f"from {folder}", case, name, "--resume")
            assert len(rest[0]) == len(plain[0])
            check_equal(rest, plain, case)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("case", "more", "rel"),
    [
        only_with_all(GPT2, "--accumulate 2", 1e-6),
        *(only_with_all(each, "--precision bf16", 1e-2) for each in (RESNET, GPT2, BERT)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_two_workers_accumulate_and_cast(tmp_path, case, more, rel):
    """Gradients are clipped in each of them; what is cast is near.

    Accumulated, a ResNet normalises over other samples than the plain loop, and BERT's gradient is
    not that of plain transformers: see docs/limitations.md and docs/guide/huggingface.md.
    """
    case = case._replace(rel=rel, held_out_abs=0.0 if rel < 1e-4 else 0.2)
    losses, ends = run_alone(tmp_path / "plain", case, f"{case.name}_plain", *more.split())
    found = run_job(tmp_path / "two", case, TWO, *more.split())
    if len(losses) > len(found[0]):  # the plain loop tells each batch of a step
        losses = [(one + other) / 2 for one, other in zip(losses[::2], losses[1::2], strict=False)]
    assert len(found[0]) == len(losses)
    check_equal(found, (losses, ends), case)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("case", [GPT2, only_with_all(RESNET), only_with_all(BERT)], ids=named)
def test_a_job_that_is_killed_is_resumed(tmp_path, case):
    """No step is lost or taken twice, on another number of workers, too."""
    plain = run_alone(tmp_path / "plain", case, f"{case.name}_plain")
    folder, faults = tmp_path / "two", dict.fromkeys(("alpha:0", "beta:0"), "update 9")
    folder.mkdir()
    command = case.command(folder, case.name, faults=faults, how="kill_when_kept", num_workers=2)
    settings = {"checkpoint_seconds": 0.05, "max_restarts": 0}
    assert FaultJob(folder, entries(TWO), settings=settings, command=command).wait(200)
    assert len(list(folder.glob("fired-*"))) == len(faults)
    second = ("--output", "second", "--resume", "out")
    run_command(folder, THREE, command, arguments=second, **settings)
    rest = told(folder, printed(folder / "second"))
    assert (len(rest[0]) < len(plain[0])) == case.weights, "transformers' log holds all steps"
    check_equal(rest, plain, case)


MAX_CHANGES = {"resnet": 25, "gpt2": 21, "bert": 4}
"""Lines that are new; of two loops written out, and of one import."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.write.__name__}")
def test_what_is_changed_in_a_script(case):
    """No more lines than said in the guide."""
    plain, ours = (
        (EXAMPLES / f"{name}.py").read_text().splitlines()
        for name in (f"{case.name}_plain", case.name)
    )
    added = [line for line in difflib.ndiff(plain, ours) if line[0] == "+" and line[1:].strip()]
    assert 0 < len(added) <= MAX_CHANGES[case.name]
