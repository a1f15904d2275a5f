"""What editors and type checkers see of the trainer is what it takes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import JobSettings, TriedOptions
from hetero_hvd.worker.options import StepOptions, TrainerOptions, step_options, with_tried

CHECKOUT = Path(__file__).parents[2]

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

model = torch.nn.Linear(1, 1)
loader = DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4)
optimizer = torch.optim.SGD(model.parameters())
trainer = hetero_hvd.Trainer(model, optimizer, loader, {options})
for epoch in trainer.epochs(2):
    for (x,) in trainer.batches():
        trainer.step(lambda x: model(x).mean(), x)
    reveal_type(epoch)
    reveal_type(trainer.loss)
    reveal_type(trainer.evaluate(lambda x: {{"mean": x.mean()}}, loader))
"""


def test_the_typed_options_are_those_that_there_are():
    """Each with the same type: one is for people who read, the other for their editors."""
    assert get_type_hints(TrainerOptions) == get_type_hints(StepOptions)


def test_a_scaler_that_is_disabled_counts_as_none():
    """As torch disables one for a GPU where there is none."""
    enabled = torch.amp.GradScaler("cpu")
    assert StepOptions(scaler=enabled).scaler is enabled
    assert StepOptions(scaler=torch.amp.GradScaler("cpu", enabled=False)).scaler is None


@pytest.mark.timeout(240)
def test_a_type_checker_sees_the_trainer(tmp_path):
    """Its options with their types, and what its methods give; a wrong one is an error."""
    options = {
        "good": 'micro_batch_size="auto", compression="fp16", accumulation_steps=2',
        "value": 'compression="zip"',
        "kind": "accumulation_steps=None",
        "name": "micro_batches=4",
    }
    for name, given in options.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(SCRIPT).format(options=given))
    command = [sys.executable, "-m", "mypy", "--config-file", str(CHECKOUT / "pyproject.toml")]
    done = subprocess.run(
        [*command, *(str(tmp_path / f"{name}.py") for name in options)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {Path(line.partition(":")[0]).stem for line in errors} == {"value", "kind", "name"}
    assert len(errors) == 3, done.stdout
    assert "micro_batches" in done.stdout
    notes = [line for line in done.stdout.splitlines() if "good.py" in line]
    said = [line.partition("Revealed type is ")[2].strip('"') for line in notes]
    assert said == ["int", "float", "dict[str, float]"], done.stdout


@pytest.mark.parametrize("name", ["equal_micro_batches", "lookahead", "reproducible", "wait_free"])
@pytest.mark.parametrize("value", ["yes", "no", "", 1, 0, [], {}], ids=repr)
def test_a_switch_is_true_or_false(name, value):
    """`"no"` would switch it on."""
    given = {"micro_batch_size": 4, name: value}
    with pytest.raises(UserError) as error:
        step_options(given, JobSettings(), loader_batch_size=8)
    assert str(error.value) == f"{name}={value!r}: must be True or False"


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, 8), ({"wait_free": True}, None), ({"reproducible": True}, None)],
    ids=["synchronous", "wait-free", "reproducible"],
)
def test_micro_batches_bound_the_memory_of_batches_that_accumulate(options, size):
    """Chunks and grains do so by themselves."""
    given = {"accumulation_steps": 2, **options}
    found = step_options(given, JobSettings(), loader_batch_size=8)
    assert found.micro_batch_size == size


@pytest.mark.parametrize(
    ("given", "tried", "expected"),
    [
        ({}, {}, {}),
        ({"compression": "fp16"}, {"compression": "none"}, {"compression": "none"}),
        ({}, {"staleness_bound": 2}, {"staleness_bound": 2, "staleness_warmup_steps": 0}),
        ({}, {"num_batches": 2}, {"accumulation_steps": 2, "micro_batch_size": 16}),
        ({}, {"num_batches": 2, "in_pieces": True}, {"accumulation_steps": 2}),
        (
            {"accumulation_steps": 3, "micro_batch_size": 4},
            {"num_batches": 2},
            {"accumulation_steps": 6, "micro_batch_size": 4},
        ),
    ],
)
def test_what_a_trial_sets_takes_the_place_of_what_the_script_says(given, tried, expected):
    """All else stays, and the script's own options are not changed."""
    before = dict(given)
    assert with_tried(given, TriedOptions(**tried), 8) == expected
    assert given == before
