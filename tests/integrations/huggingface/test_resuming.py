"""A training goes on from whole checkpoints only, and says which it passes over."""

import json
import shutil

import pytest
import torch
from transformers import TrainingArguments

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.huggingface import Trainer
from hetero_hvd.integrations.huggingface.resuming import (
    INDICES,
    WEIGHTS,
    newest_whole,
    tell_if_weights_only,
    why_not_whole,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Regression(torch.nn.Module):
    """A model as transformers expects one, with the least that it asks for."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, inputs, labels):
        """Loss and output."""
        found = self.layer(inputs).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    def floating_point_ops(self, _):
        """Of no interest here."""
        return 1


def make_trainer(folder, base=Trainer, **more):
    """A trainer of six steps that writes a checkpoint after each two."""
    torch.manual_seed(2)
    rows = [{"inputs": torch.randn(3), "labels": torch.randn(())} for _ in range(24)]
    args = TrainingArguments(
        str(folder), report_to="none", disable_tqdm=True, use_cpu=True, num_train_epochs=2,
        remove_unused_columns=False, save_strategy="steps", save_steps=2, logging_steps=100, **more,
    )  # fmt: skip
    return base(Regression(), args, train_dataset=rows)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Output folder of a run that has come to its end, as transformers leaves it."""
    folder = tmp_path_factory.mktemp("trained")
    make_trainer(folder).train()
    return folder


@pytest.fixture
def output(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "output")


def cut(path):
    """Leave the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def emptied(folder):
    """Leave nothing but the folder."""
    for path in folder.iterdir():
        path.unlink()


def sharded(folder):
    """Give the weights an index that names a file which is not there."""
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"layer.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def indexed_by_half(folder):
    """The same, killed within the index."""
    sharded(folder)
    cut(folder / "model.safetensors.index.json")


PARTS = {
    "killed at once": (emptied, "has no trainer_state.json"),
    "killed before the state": (
        lambda folder: (folder / "trainer_state.json").unlink(),
        "has no trainer_state.json",
    ),
    "killed within the state": (
        lambda folder: cut(folder / "trainer_state.json"),
        "trainer_state.json is cut off",
    ),
    "an empty state": (
        lambda folder: (folder / "trainer_state.json").write_text("{}"),
        "says no global_step",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "weights lost with the power": (
        lambda folder: cut(folder / "model.safetensors"),
        "model.safetensors is cut off",
    ),
    "optimizer lost with the power": (
        lambda folder: cut(folder / "optimizer.pt"),
        "optimizer.pt is cut off",
    ),
    "schedule lost with the power": (
        lambda folder: (folder / "scheduler.pt").write_bytes(b""),
        "scheduler.pt is cut off",
    ),
    "a part of the weights": (sharded, "has no model-00001-of-00002.safetensors"),
    "a part of their index": (indexed_by_half, "index of its weights is cut off"),
}


@pytest.mark.parametrize(("leave", "why"), PARTS.values(), ids=PARTS.keys())
def test_the_newest_whole_checkpoint_is_taken(output, caplog, leave, why):
    """The one before the part that a killed run has left, which is named with what it lacks."""
    leave(output / "checkpoint-6")
    trainer = make_trainer(output)
    begun = []
    trainer._load_from_checkpoint = lambda path, **_: begun.append(path)
    type(trainer).train(trainer, resume_from_checkpoint=True)
    assert begun == [str(output / "checkpoint-4")]
    (told,) = [record.message for record in caplog.records if "passed over" in record.message]
    assert str(output / "checkpoint-6") in told
    assert why in told
    assert not why_not_whole(output / "checkpoint-6")  # it has come to that step again


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_an_optimizer_that_begins_anew_is_told(output, caplog, has_optimizer):
    """Where the checkpoint has the weights alone; transformers says nothing."""
    place = output / "checkpoint-4"
    if not has_optimizer:
        (place / "optimizer.pt").unlink()
    tell_if_weights_only(place)
    words = f"{place} has no optimizer.pt, as with save_only_model=True: optimizer and schedule"
    assert (words in caplog.text) != has_optimizer


def test_a_whole_checkpoint_is_taken_by_its_number(output):
    """Not by its letters, nor where the name is another one or a file's."""
    (output / "checkpoint-6").rename(output / "checkpoint-10")
    (output / "checkpoint-11-best").mkdir()
    (output / "checkpoint-12").touch()
    assert newest_whole(output) == output / "checkpoint-10"


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        *((name, inside) for name in WEIGHTS for inside in ("", "adapter")),
        *((i, "") for i in INDICES),
    ],
)
def test_weights_of_every_kind_are_weights(output, name, inside):
    """Of the model, in parts, or of an adapter, which may have a folder of its own."""
    folder = output / "checkpoint-6"
    weights = folder / "model.safetensors"
    (folder / inside).mkdir(exist_ok=True)
    moved = folder / inside / name
    if name.endswith(".index.json"):
        moved.write_text(json.dumps({"weight_map": {"layer": "one.safetensors"}}))
        moved = moved.with_name("one.safetensors")
    weights.rename(moved)
    assert not why_not_whole(folder)


def test_a_subclass_may_keep_weights_of_its_own(output):
    """What it reads itself is not looked for; the state still has to be whole."""

    class Own(Trainer):
        def _load_from_checkpoint(self, path, **_):
            self.begun = path

    for number in (2, 4, 6):
        (output / f"checkpoint-{number}" / "model.safetensors").unlink()
    (output / "checkpoint-6" / "trainer_state.json").unlink()
    trainer = make_trainer(output, base=Own)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.begun == str(output / "checkpoint-4")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        (True, "only parts of some"),
        ("checkpoint-4", "has no trainer_state.json"),
        ("checkpoint-5", "it is no folder"),
    ],
)
def test_where_none_is_whole_one_line_says_so(output, named, told):
    """Instead of a training that begins anew, or an error of transformers deep inside."""
    for number in (2, 4, 6):
        (output / f"checkpoint-{number}" / "trainer_state.json").unlink()
    with pytest.raises(UserError, match=told) as caught:
        make_trainer(output).train(named if named is True else str(output / named))
    assert "resume_from_checkpoint" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_there", [True, False])
def test_without_any_checkpoint_one_line_says_so(tmp_path, is_there):
    """Also where the output folder is not there."""
    folder = tmp_path / "new"
    trainer = make_trainer(folder)
    if is_there:
        folder.mkdir(exist_ok=True)
    with pytest.raises(UserError, match="has no whole checkpoint-N: leave it out"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(("leave", "why"), PARTS.values(), ids=PARTS.keys())
def test_a_new_leader_completes_what_is_not_whole(output, leave, why):
    """The leader before was lost at any moment of its writing."""
    trainer = make_trainer(output)
    trainer.train()
    leave(output / "checkpoint-6")
    assert why in why_not_whole(output / "checkpoint-6")
    trainer._complete_save()
    assert not why_not_whole(output / "checkpoint-6")


def test_a_new_leader_leaves_a_whole_one_with_weights_of_its_own(output):
    """What a subclass reads itself is not looked for here either."""

    class Own(Trainer):
        def _load_from_checkpoint(self, path, **_):
            """Nothing."""

    trainer = make_trainer(output, base=Own)
    trainer.train()
    (output / "checkpoint-6" / "model.safetensors").unlink()
    trainer._complete_save()
    assert not (output / "checkpoint-6" / "model.safetensors").exists()
