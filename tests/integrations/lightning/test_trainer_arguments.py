"""Every argument of Lightning's Trainer is known, and none is passed over."""

from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities import device_parser
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.errors import ConfigError, UserError
from hetero_hvd.integrations.lightning import HeteroStrategy, trainer_arguments
from hetero_hvd.integrations.lightning.arguments_page import reference
from hetero_hvd.integrations.lightning.trainer_arguments import REFUSED_CALLBACKS, RULES, names
from hetero_hvd.integrations.rules import Treatment

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "lightning.md"
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_epochs": 1,
}
OTHER_VALUES = {
    "devices": 2,
    "num_nodes": 2,
    "precision": "bf16-true",
    "val_check_interval": timedelta(seconds=5),
    "plugins": LightningEnvironment(),
    "reload_dataloaders_every_n_epochs": 1,
}
"""A value of each refused argument that is not harmless; `accelerator` has a test of its own."""


@pytest.mark.parametrize("given", ["auto", 1, "1"])
def test_one_device_is_what_each_worker_has(monkeypatch, given):
    """However a script says it, and as Lightning keeps it where there is a GPU."""
    monkeypatch.setattr(device_parser, "_get_all_available_gpus", lambda **_kinds: [0])
    is_harmless = RULES["devices"].is_harmless
    assert is_harmless(given)
    assert is_harmless(CUDAAccelerator.parse_devices(1 if given == "auto" else given))
    assert not is_harmless(2)
    assert not is_harmless([0, 1])


class Module(pl.LightningModule):
    """A regression, with the least that Lightning asks for."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):  # noqa: ARG002
        """The mean square."""
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        """One."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(Module):
    """Steps by itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class TwoOptimizers(Module):
    """Has two."""

    def configure_optimizers(self):
        """Both for the same."""
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)], []


class NoOptimizer(Module):
    """Has none."""

    def configure_optimizers(self):
        """Nothing."""


class OwnStep(Module):
    """Overrides the update."""

    def optimizer_step(self, *given, **named):
        """As before."""
        super().optimizer_step(*given, **named)


class OwnBackward(Module):
    """Overrides the backward pass."""

    def backward(self, loss):
        """As before."""
        loss.backward()


class ByIterator(Module):
    """Reads by itself."""

    def training_step(self, dataloader_iter):
        """The mean square."""
        return self.layer(next(dataloader_iter)[0][0]).square().mean()


class Skipping(Module):
    """Gives no loss."""

    def training_step(self, batch, batch_idx):
        """Nothing."""


class Validated(Module):
    """Has a validation."""

    def validation_step(self, batch, batch_idx):
        """The mean square."""
        self.log("val", self.training_step(batch, batch_idx))


class LeavesEpoch(Module):
    """Asks to leave the epoch."""

    def on_train_batch_start(self, batch, batch_idx):  # noqa: ARG002
        """At once."""
        return -1


class GathersInPass(Module):
    """Waits for the other workers where they do not come."""

    def training_step(self, batch, batch_idx):
        """As for one worker of several."""
        self.trainer.strategy._is_in_part = True
        self.all_gather(batch[0])
        return super().training_step(batch, batch_idx)


def loader(count=10, size=2):
    """Samples of a regression."""
    return DataLoader(TensorDataset(torch.randn(count, 3)), size)


def fit(module=None, data=None, **given):
    """One training with our strategy."""
    trainer = pl.Trainer(strategy=HeteroStrategy(), **QUIET | given)
    trainer.fit(module or Module(), loader() if data is None else data)
    return trainer


def test_each_argument_of_the_installed_version_has_a_rule():
    """And there is none that this version does not have."""
    assert set(names()) == RULES.keys()


def test_what_is_not_as_it_stands_says_why():
    """Refused and taken-over arguments each have a sentence."""
    assert [
        name for name, rule in RULES.items() if rule.treatment.value != "honoured" and not rule.why
    ] == []


def test_the_page_is_the_generated_one():
    """docs/reference/lightning.md is what `scripts/pages` writes."""
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_each_refused_argument_has_a_case():
    """In the table of this test, and Lightning's value of it can be found."""
    refused = {name for name, rule in RULES.items() if rule.treatment is Treatment.REFUSED}
    assert refused == OTHER_VALUES.keys() | {"accelerator"}
    assert trainer_arguments._FOUND.keys() == OTHER_VALUES.keys()


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_refused_argument_is_named_with_its_reason(name):
    """In one line."""
    with pytest.raises(ConfigError, match=f"Trainer.{name}=") as caught:
        fit(**{name: OTHER_VALUES[name]})
    assert RULES[name].why in caught.value.problems[0]
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_time", None, "does not know it, nor whether it was given: install lightning 2.6"),
        ("log_every_n_steps", 7, "=7: hetero_hvd does not know it: leave it out"),
        ("detect_anomaly", True, "=True: hetero_hvd does not know it: leave it out"),
        ("num_nodes", 2, "=2: hetero_hvd does not know it: leave it out"),
        ("detect_anomaly", False, None),
        ("check_val_every_n_epoch", 1, None),
        ("num_nodes", 1, None),
    ],
)
def test_an_argument_of_a_later_version_is_refused_by_name(monkeypatch, name, value, said):
    """Wherever Lightning keeps it; with its default it asks for nothing, if that can be seen."""
    monkeypatch.delitem(RULES, name)
    monkeypatch.delitem(trainer_arguments._FOUND, name, raising=False)
    if said is None:
        fit(**{name: value})
        return
    with pytest.raises(ConfigError) as caught:
        fit(**{name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"Trainer.{name}")
    assert said in problem


def test_another_kind_of_device_is_refused(monkeypatch):
    """The worker's slot says which it is."""
    monkeypatch.setattr(HeteroStrategy, "root_device", torch.device("meta"))
    with pytest.raises(ConfigError, match=r"Trainer\.accelerator=.*nodes\.yaml"):
        fit()


def test_all_that_is_wrong_is_said_at_once():
    """A line for each."""
    with pytest.raises(ConfigError) as caught:
        fit(devices=2, num_nodes=3, callbacks=[GradientAccumulationScheduler({1: 2})])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "callback",
    [
        BatchSizeFinder(),
        LearningRateFinder(),
        GradientAccumulationScheduler({1: 2}),
        StochasticWeightAveraging(0.1),
        WeightAveraging(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_a_callback_that_cannot_work_is_refused(callback):
    """Each of the table."""
    why = REFUSED_CALLBACKS[type(callback).__name__]
    with pytest.raises(ConfigError) as caught:
        fit(callbacks=[callback])
    assert list(caught.value.problems) == [f"Trainer.callbacks: {type(callback).__name__}: {why}"]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Manual, "Manual.automatic_optimization=False: .* leave it True"),
        (TwoOptimizers, "configure_optimizers: must give one optimizer, with groups"),
        (NoOptimizer, "configure_optimizers: must give one optimizer"),
        (OwnStep, "OwnStep.optimizer_step is overridden: .* by a scheduler"),
        (OwnBackward, "OwnBackward.backward is overridden: .* training_step"),
        (ByIterator, "training_step\\(dataloader_iter\\): take a batch"),
        (Skipping, "training_step returned no loss: .*'loss_weight'"),
        (LeavesEpoch, "on_train_batch_start returned -1: .*trainer.should_stop"),
        (GathersInPass, "all_gather in a training_step.*sync_dist=True"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_module_with_a_way_of_its_own_is_refused(module, said):
    """In one line that says what to do."""
    with pytest.raises(UserError, match=said):
        fit(module())


@pytest.mark.parametrize(
    ("data", "given", "said"),
    [
        ([loader(), loader()], {}, "2 loaders: must be one"),
        ([torch.ones(2, 3)], {}, "train_dataloaders: Tensor: must be one torch DataLoader"),
        (
            loader(),
            {"limit_train_batches": 3, "accumulate_grad_batches": 2},
            "limit_train_batches gives 3 batches: must be a multiple of accumulate_grad_batches=2",
        ),
    ],
)
def test_data_that_cannot_be_divided_is_refused(data, given, said):
    """In one line that says what to do."""
    with pytest.raises(UserError, match=said):
        fit(data=data, **given)


def test_a_validation_in_the_midst_of_a_step_is_refused():
    """It is between two steps."""
    given = {"accumulate_grad_batches": 2, "val_check_interval": 3}
    trainer = pl.Trainer(strategy=HeteroStrategy(), **QUIET | given)
    with pytest.raises(ConfigError, match="val_check_interval gives 3 batches: must be a multiple"):
        trainer.fit(Validated(), loader(), loader())


@pytest.mark.parametrize("mode", ["wait_free", "staleness_bound"])
def test_a_job_whose_steps_overlap_is_refused(monkeypatch, mode):
    """Lightning counts steps that end one after the other."""
    name = "HETERO_HVD_MODE" if mode == "wait_free" else "HETERO_HVD_STALENESS_BOUND"
    monkeypatch.setenv(name, "wait_free" if mode == "wait_free" else "2")
    with pytest.raises(UserError, match="Lightning plans its schedule"):
        HeteroStrategy()
