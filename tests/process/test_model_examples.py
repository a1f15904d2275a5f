"""ResNet on images, BERT on GLUE, GPT-2 on text: each with us and without, on unequal workers."""

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.kit.fault_job import FaultJob

pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
IN_FLOAT64 = Path(__file__).with_name("scripts") / "in_float64.py"
SPEEDS = {"alpha": 1.0, "beta": 0.5, "gamma": 0.5}
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
        rel: Relative difference of losses that is allowed; transformers rounds what it prints.
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

    def command(self, name):
        """What runs an example, with us or without, before its arguments."""
        script = str(EXAMPLES / f"{name}.py")
        return [str(IN_FLOAT64), script] if self.in_float64 else [script]


SMALL_BERT = "--layers 1 --heads 2 --width 16 --batch-size 8 --epochs 2 --lr 1e-3"
BY_TRANSFORMERS = {"rel": 2e-4, "in_float64": False, "weights": False}
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


def told(output):
    """Losses of the steps and what was found at the end of each epoch, in order."""
    losses = re.findall(r"^step \d+  loss (\S+)", output, re.MULTILINE)
    ends = re.findall(r"^epoch \d+  .* (\S+)$", output, re.MULTILINE)
    if not losses:  # transformers' own lines
        losses = re.findall(r"'loss': '?([\d.e-]+)", output)
        ends = re.findall(r"'eval_(?:\w+_)?(?:loss|accuracy|pearson)': '?([\d.e-]+)", output)
    return [float(loss) for loss in losses], [float(end) for end in ends]


def run_alone(folder, case, name, *more):
    """What an example prints that no launcher has started."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, *case.command(name), folder.parent / "data", *case.flags.split()]
    done = subprocess.run(
        [*command, *more], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return told(done.stdout)


def run_job(folder, case, names, *more):
    """The same by a job of unequal workers."""
    folder.mkdir(exist_ok=True)
    nodes = [
        {"name": name, "slots": 1, "devices": [], "relative_speed": SPEEDS[name]} for name in names
    ]
    command = [*case.command(case.name), str(folder.parent / "data")]
    settings = {"rule": "static", "checkpoint_seconds": 300}
    job = FaultJob(folder, nodes, settings=settings, command=[*command, *case.flags.split(), *more])
    code = job.wait(250)
    assert code == 0, job.console
    logs = "".join(path.read_text() for path in sorted((folder / "out" / "logs").glob("*")))
    return told(re.sub(r"^\S+ \S+: ", "", logs, flags=re.MULTILINE))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.write.__name__}")
def test_the_same_numbers_with_us_and_without(tmp_path, case):
    """Losses of the first 20 steps, held-out results, and going on from the other's weights."""
    (tmp_path / "data").mkdir()
    case.write(tmp_path / "data")
    plain = run_alone(tmp_path / "plain", case, f"{case.name}_plain")
    assert len(plain[0]) >= 8
    assert plain[1]
    alone = run_alone(tmp_path / "alone", case, case.name)
    three = run_job(tmp_path / "three", case, tuple(SPEEDS))
    for found in (alone, three):
        assert found[0][:20] == pytest.approx(plain[0][:20], rel=case.rel)
        assert found[1] == pytest.approx(plain[1], rel=10 * case.rel, abs=case.held_out_abs)
    if case.weights:
        ours = max((tmp_path / "three" / "out" / "checkpoints").glob("step-*/state.pt"))
        theirs = tmp_path / "plain" / "checkpoint.pt"
        going_on = [
            run_alone(tmp_path / "again", case, f"{case.name}_plain", "--weights", str(ours)),
            run_alone(tmp_path / "again", case, case.name, "--weights", str(theirs)),
        ]
        assert going_on[0][0][:5] == pytest.approx(going_on[1][0][:5], rel=1e-4)


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
