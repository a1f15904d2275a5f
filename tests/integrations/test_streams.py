"""A data set that cannot be read from any position is refused in a job, whoever trains."""

import lightning.pytorch as pl
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import hetero_hvd
from hetero_hvd.errors import UserError
from hetero_hvd.integrations.huggingface import Trainer
from hetero_hvd.integrations.lightning import HeteroStrategy
from tests.data.streams import STREAMS, WITH_POSITIONS

pytestmark = pytest.mark.filterwarnings("ignore")

MAPPED = WITH_POSITIONS["map-style"]
ROWS = [{"inputs": torch.full((3,), 0.1 * n), "labels": torch.tensor(0.2 * n)} for n in range(8)]


class Regression(torch.nn.Module):
    """A model as transformers expects one."""

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


class Module(pl.LightningModule):
    """The same for Lightning."""

    def __init__(self):
        super().__init__()
        self.model = Regression()

    def training_step(self, batch):
        """The loss."""
        return self.model(**batch)["loss"]

    def validation_step(self, batch):
        """What is found."""
        self.log("found", self.model(**batch)["loss"], batch_size=len(batch["labels"]))

    test_step = validation_step

    def predict_step(self, batch):
        """The output."""
        return self.model(**batch)["logits"]

    def configure_optimizers(self):
        """One."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run_plain(_, train, evaluated):
    """A loop of the script's own."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(train, 2))
    if evaluated is not None:
        next(trainer.epochs(1))
        loader = DataLoader(evaluated, 3)
        return trainer.evaluate(lambda batch: {"found": model(**batch)["loss"]}, loader)["found"]
    for _ in trainer.epochs(1):
        for batch in trainer.batches():
            trainer.step(lambda batch: model(**batch)["loss"], batch)
    return trainer.applied_steps


def lightning():
    """Ours, for one epoch."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"accelerator": "cpu", "enable_checkpointing": False, "max_epochs": 1}
    return pl.Trainer(strategy=HeteroStrategy(), num_sanity_val_steps=0, **quiet)


def run_fit(_, train, evaluated):
    """With validation, or without."""
    trainer = lightning()
    if evaluated is None:
        trainer.fit(Module(), DataLoader(train, 2))
        return trainer.global_step
    trainer.fit(Module(), DataLoader(train, 2), DataLoader(evaluated, 3))
    return trainer.callback_metrics["found"]


def run_validate(_, train, evaluated):  # noqa: ARG001 - as the others
    """Before training."""
    (found,) = lightning().validate(Module(), DataLoader(evaluated, 3), verbose=False)
    return found["found"]


def run_test(_, train, evaluated):  # noqa: ARG001
    """As that."""
    (found,) = lightning().test(Module(), DataLoader(evaluated, 3), verbose=False)
    return found["found"]


def run_predict(_, train, evaluated):  # noqa: ARG001
    """As that."""
    found = torch.cat(lightning().predict(Module(), DataLoader(evaluated, 3)))
    return torch.nn.functional.mse_loss(found, torch.stack([row["labels"] for row in ROWS]))


def hugging_face(folder, train, evaluated):
    """Of four steps."""
    args = transformers.TrainingArguments(
        str(folder), report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True,
        max_steps=4, per_device_train_batch_size=2, per_device_eval_batch_size=3,
        remove_unused_columns=False, eval_strategy="no" if evaluated is None else "epoch",
    )  # fmt: skip
    return Trainer(Regression(), args, train_dataset=train, eval_dataset=evaluated)


def run_train(folder, train, evaluated):
    """With evaluations, or without."""
    trainer = hugging_face(folder, train, evaluated)
    done = trainer.train().global_step
    return done if evaluated is None else trainer.evaluate()["eval_loss"]


def run_evaluate(folder, train, evaluated):
    """Before training."""
    return hugging_face(folder, train, evaluated).evaluate()["eval_loss"]


USES = {
    "plain training": (run_plain, True, "the training loader"),
    "plain evaluation": (run_plain, False, "the loader to evaluate"),
    "Lightning's fit": (run_fit, True, "train_dataloaders"),
    "Lightning's validation in fit": (run_fit, False, "val_dataloaders"),
    "Lightning's validate": (run_validate, False, "val_dataloaders"),
    "Lightning's test": (run_test, False, "test_dataloaders"),
    "Lightning's predict": (run_predict, False, "predict_dataloaders"),
    "Hugging Face's train": (run_train, True, "train_dataset"),
    "Hugging Face's evaluation in train": (run_train, False, "eval_dataset"),
    "Hugging Face's evaluate": (run_evaluate, False, "Evaluation"),
}
"""Who reads a set; whether to train on it; what it is called."""


def use(folder, way, make):
    """Let the way read a set of this kind, beside others of the usual kind."""
    run, trains, _ = USES[way]
    torch.manual_seed(0)
    return run(folder, (make if trains else MAPPED)(ROWS), None if trains else make(ROWS))


@pytest.mark.parametrize("way", USES)
@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_is_refused_in_a_job(tmp_path, monkeypatch, kind, way):
    """In one line with its name, what is allowed and what to do, before anything is read."""
    monkeypatch.setenv("HOROVOD_RANK", "0")  # a launcher has started this process
    with pytest.raises(UserError) as caught:
        use(tmp_path, way, STREAMS[kind])
    found = type(STREAMS[kind](ROWS)).__name__
    assert str(caught.value).startswith(f"{USES[way][-1]}: {found} is an IterableDataset, which")
    assert "StreamShards(stream, lengths=[...])" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", USES)
def test_a_process_alone_reads_any_kind(tmp_path, way):
    """All of it: it takes as many steps, and finds the same, as with a map-style set."""
    kinds = STREAMS | WITH_POSITIONS
    if "plain" not in way:  # the others' own loops, where torch reads
        kinds = {name: kinds[name] for name in ("a generator", "a stream's shards")}
    expected = float(use(tmp_path, way, MAPPED))
    for kind, make in kinds.items():
        assert float(use(tmp_path, way, make)) == pytest.approx(expected, rel=1e-6), kind
    assert not USES[way][1] or expected == 4


class Iterated:
    """Batches of nobody knows what."""

    def __iter__(self):
        return iter(DataLoader(MAPPED(ROWS), 3))


def test_only_a_loader_of_torch_is_evaluated_in_parts(monkeypatch):
    """Whatever else Lightning iterates over is refused in a job, too."""
    expected = run_validate(None, None, MAPPED(ROWS))
    assert expected > 0
    (found,) = lightning().validate(Module(), Iterated(), verbose=False)
    assert found["found"] > 0
    monkeypatch.setenv("HOROVOD_RANK", "0")
    with pytest.raises(UserError, match="val_dataloaders: Iterated: must be a torch DataLoader"):
        lightning().validate(Module(), Iterated(), verbose=False)


def test_each_of_several_sets_is_looked_at_before_training(tmp_path, monkeypatch):
    """Not only when its turn comes, after steps that would be lost."""
    monkeypatch.setenv("HOROVOD_RANK", "0")
    sets = {"one": MAPPED(ROWS), "other": STREAMS["a generator"](ROWS)}
    with pytest.raises(UserError, match=r"^eval_dataset\['other'\]: Iterating is"):
        hugging_face(tmp_path, MAPPED(ROWS), sets).train()
