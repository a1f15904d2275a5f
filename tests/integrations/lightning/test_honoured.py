"""Each honoured argument has the effect that it has in plain Lightning.

One process trains a small module thrice: plainly without the argument, plainly with it, and with
hetero_hvd. The first two must differ, so that the comparison of the last two says something.
"""

import contextlib
import io
import os
from datetime import timedelta

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.integrations.lightning import HeteroStrategy
from hetero_hvd.integrations.lightning.trainer_arguments import RULES
from hetero_hvd.integrations.rules import Treatment

pytestmark = pytest.mark.filterwarnings("ignore")

HOOKS = (
    "on_sanity_check_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_end",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_test_batch_end",
    "on_predict_batch_end",
    "on_save_checkpoint",
    "on_exception",
)


class Logger(DummyLogger):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def log_metrics(self, metrics, step=None):
        """Numbers at a step."""
        self.told.append((step, dict(metrics)))

    def log_hyperparams(self, params=None, *_, **__):
        """Of the module."""
        self.told.append(("settings", dict(params or {})))


class Events(Callback):
    """Which hooks are called, in which order, at which step."""

    def __init__(self):
        self.seen = []

    def __getattribute__(self, name):
        if name not in HOOKS:
            return super().__getattribute__(name)
        return lambda trainer, *_, **__: self.seen.append((name, trainer.global_step))


class Module(pl.LightningModule):
    """A regression; its gradients are no numbers at a step, if one is named."""

    def __init__(self, nan_step=None):  # noqa: ARG002 - a hyperparameter
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1)
        self.modes = []

    def training_step(self, batch, batch_idx):
        """A mean square."""
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss * torch.tensor(0.0).log() * 0 if batch_idx == self.hparams.nan_step else loss

    def validation_step(self, batch):
        """The same."""
        self.log("val", self.layer(batch[0]).square().mean())

    def test_step(self, batch):
        """The same."""
        self.modes.append(torch.is_inference_mode_enabled())
        self.log("test", self.layer(batch[0]).square().mean())

    def predict_step(self, batch):
        """What it says."""
        return self.layer(batch[0])

    def configure_optimizers(self):
        """One."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


LONG = {"max_epochs": 4}
FILES = {"enable_checkpointing": True, "logger": False}
CLIPS = {"gradient_clip_val": 0.02}

CASES = {  # name: (value, arguments without which it has no effect)
    "logger": (False, {}),
    "callbacks": (["ends early"], LONG),
    "fast_dev_run": (2, {}),
    "max_epochs": (1, {}),
    "min_epochs": (3, LONG | {"stops": True}),
    "max_steps": (3, {}),
    "min_steps": (8, LONG | {"stops": True}),
    "max_time": (timedelta(seconds=0), {}),
    "limit_train_batches": (2, {}),
    "limit_val_batches": (1, {}),
    "limit_test_batches": (1, {}),
    "limit_predict_batches": (1, {}),
    "overfit_batches": (2, {}),
    "check_val_every_n_epoch": (2, {}),
    "num_sanity_val_steps": (1, {}),
    "log_every_n_steps": (2, {}),
    "enable_checkpointing": (True, {"logger": False}),
    "enable_progress_bar": (True, {}),
    "enable_model_summary": (True, {}),
    "gradient_clip_val": (0.02, {}),
    "gradient_clip_algorithm": ("value", CLIPS),
    "deterministic": (True, {}),
    "benchmark": (True, {}),
    "inference_mode": (False, {}),
    "profiler": (SimpleProfiler(), {}),
    "detect_anomaly": (True, {"nan_step": 2}),
    "barebones": (True, {"logger": None, "is_bare": True}),
    "default_root_dir": ("elsewhere", FILES),
    "enable_autolog_hparams": (False, {}),
}

ELSEWHERE = {"model_registry": "a service"}
"""Honoured, and not seen here: what is missing."""


def loader(count):
    """Samples of a regression."""
    numbers = torch.Generator().manual_seed(count)
    return DataLoader(TensorDataset(torch.randn(count, 3, generator=numbers)), 2)


class Stop(Callback):
    """Would end training after the first epoch."""

    def on_train_epoch_end(self, trainer, _):
        """Lightning goes on up to the least number of epochs and steps."""
        trainer.should_stop = True


def found_by(strategy, folder, given):
    """All that a training leaves: numbers, calls, files, settings."""
    given = dict(given)
    nan_step, stops, is_bare = (given.pop(name, None) for name in ("nan_step", "stops", "is_bare"))
    logger, events = Logger(), Events()
    base = {"accelerator": "cpu", "max_epochs": 2, "num_sanity_val_steps": 0, "logger": logger}
    base |= {"log_every_n_steps": 1, "enable_progress_bar": False, "enable_model_summary": False}
    base |= {"enable_checkpointing": False}
    if is_bare:  # Lightning refuses most of that beside it
        base = {"accelerator": "cpu", "max_epochs": 2} | (
            {} if "barebones" in given else {"enable_checkpointing": False}
        )
        given.pop("logger")
    early = pl.callbacks.EarlyStopping("val", min_delta=10.0, patience=0)
    own = [events, *([Stop()] if stops else []), *([early] if given.pop("callbacks", []) else [])]
    if "default_root_dir" in given:
        given["default_root_dir"] = str(folder / given["default_root_dir"])
    module, printed, problem = Module(nan_step), io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        trainer = pl.Trainer(**base | given | strategy, callbacks=own)
        try:
            trainer.fit(module, loader(10), loader(4))
        except RuntimeError as error:
            problem = str(error)
        trainer.test(module, loader(4), verbose=False)
        predicted = trainer.predict(module, loader(6))
    names = sorted(type(each).__name__ for each in trainer.callbacks)
    return {
        "logged": [value for told in logger.told for value in told],
        "calls": events.seen,
        "weights": [each.item() for each in module.layer.weight.flatten()],
        "predicted": len(predicted),
        "files": sorted(str(each.relative_to(folder)) for each in folder.rglob("*.*")),
        "callbacks": [name.replace("LateProgressBar", "TQDMProgressBar") for name in names],
        "has summary": "Trainable params" in printed.getvalue(),
        "problem": problem,
        "inference modes": module.modes,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "profiler": type(trainer.profiler).__name__,
        "steps": trainer.global_step,
        "epoch": trainer.current_epoch,
    }


@pytest.fixture(autouse=True)
def as_it_was(tmp_path, monkeypatch):
    """What an argument changes for the whole process is taken back."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED"):
        monkeypatch.delenv(name, raising=False)
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = benchmark
    torch.autograd.set_detect_anomaly(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_each_honoured_argument_is_tried():
    """Or it is said what is missing for that."""
    honoured = {name for name, rule in RULES.items() if rule.treatment is Treatment.HONOURED}
    assert honoured == CASES.keys() | ELSEWHERE.keys()
    assert not CASES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", CASES)
def test_an_honoured_argument_has_its_effect(tmp_path, monkeypatch, name):
    """The same one as in plain Lightning."""
    value, more = CASES[name]
    found = {}
    for way, given, strategy in (
        ("without", more, {}),
        ("plain", more | {name: value}, {}),
        ("ours", more | {name: value}, {"strategy": HeteroStrategy()}),
    ):
        (folder := tmp_path / way).mkdir()
        monkeypatch.chdir(folder)
        torch.backends.cudnn.benchmark = False
        found[way] = found_by(strategy, folder, given)
        torch.use_deterministic_algorithms(False)
    assert found["plain"] != found["without"], "it has no effect here"
    for what, expected in found["plain"].items():
        told = found["ours"][what]
        if what == "weights":
            assert told == pytest.approx(expected, rel=1e-5, nan_ok=True), what
        elif what == "logged":
            assert str(told) == str(expected), what
        else:
            assert told == expected, what
