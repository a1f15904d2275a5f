"""Trainings of a tiny module with Lightning, with our strategy or without.

Usage: lightning_training.py JSON, with the fields of `trainer_faults.CASE`: `trainings` with the
arguments and checkpoint of each, and `is_plain`, if it is to be without us.
"""

import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Sampler, TensorDataset
from trainer_faults import CASE, fault_at, give_time, leave_result, tell_that_it_is_back

SYNCED = ("mean", "sum", "max", "min")
"""How values of all workers become one with `sync_dist=True`."""

warnings.filterwarnings("ignore", module="lightning")


def strategy(*, is_plain, **given):
    """Ours, if it is to be used."""
    if is_plain:
        return {}
    from hetero_hvd.integrations.lightning import HeteroStrategy  # noqa: PLC0415 - if at all

    return {"strategy": HeteroStrategy(**given)}


class Order(Sampler):
    """Another order in each epoch, the same with us and without."""

    def __init__(self, count):
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch):
        """Lightning and we call it."""
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())


class Module(pl.LightningModule):
    """A regression, which logs in all the ways that there are."""

    def __init__(self, scheduling):  # noqa: ARG002 - kept as a hyperparameter
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )
        self.train_error = torchmetrics.MeanAbsoluteError()
        self.own_error = torchmetrics.MeanAbsoluteError()
        self.error = torchmetrics.MeanAbsoluteError()
        self.errors = []

    def loss(self, batch):
        """The error, and what the module gives."""
        inputs, wanted = batch
        found = self.net(inputs).squeeze(-1)
        return torch.nn.functional.mse_loss(found.float(), wanted), found

    def training_step(self, batch, batch_idx):
        """Log the loss over all workers, and how many samples are this worker's."""
        if CASE.get("faults"):
            fault_at(f"loss {self.global_step}")
            give_time(self.global_step, self.trainer.world_size)
        assert batch_idx >= 0
        loss, found = self.loss(batch)
        self.train_error.update(found, batch[1])
        self.own_error(found, batch[1])
        self.log("own_error", self.own_error, on_step=True, on_epoch=True)
        self.log("train_loss", loss, sync_dist=True, on_step=True, on_epoch=True)
        self.log("own_samples", float(len(found)), reduce_fx="sum")
        return {"loss": loss, "count": len(found)}

    def on_before_optimizer_step(self, optimizer):
        """What the update is made of, before it is clipped."""
        fault_at(f"update {self.global_step}")
        grads = [p.grad.norm() for group in optimizer.param_groups for p in group["params"]]
        self.norm = float(torch.stack(grads).norm())

    def on_train_epoch_end(self):
        """A metric that all workers have updated."""
        self.errors.append(float(self.train_error.compute()))
        self.log("train_error", self.errors[-1])
        self.train_error.reset()

    def validation_step(self, batch, batch_idx):  # noqa: ARG002
        """A mean by `self.log`, and a metric object."""
        if not self.trainer.sanity_checking:
            fault_at(f"evaluate {self.global_step}")
        loss, found = self.loss(batch)
        self.error.update(found, batch[1])
        self.log("val_loss", loss)
        self.log("val_error", self.error)
        self.log("val_worst", (found - batch[1]).abs().max(), reduce_fx="max")
        for kind in SYNCED:
            on_step = kind == "mean"  # so that its name is val_mean_epoch
            self.log(f"val_{kind}", loss, reduce_fx=kind, sync_dist=True, on_step=on_step)

    def test_step(self, batch, batch_idx, dataloader_idx=0):  # noqa: ARG002
        """For two loaders."""
        self.log("test_loss", self.loss(batch)[0])
        self.log("test_sum", self.loss(batch)[0], reduce_fx="sum", sync_dist=True)

    def predict_step(self, batch, batch_idx):
        """In order."""
        fault_at(f"predict {self.global_step}")
        return {"found": self.loss(batch)[1], "batch": batch_idx}

    def configure_optimizers(self):
        """One optimizer with a schedule by step, or by what validation finds."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-2)
        schedulers = torch.optim.lr_scheduler
        if self.hparams.scheduling == "step":
            schedule = {
                "scheduler": schedulers.StepLR(optimizer, 5, 0.9),
                "interval": "step",
            }
        elif self.hparams.scheduling == "epoch":
            schedule = schedulers.ExponentialLR(optimizer, 0.9)
        else:
            schedule = {
                "scheduler": schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.1),
                "monitor": "val_loss",
            }
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Tell(pl.Callback):
    """Notes what each step and each validation finds."""

    def __init__(self):
        self.steps = {}
        self.told = {}
        self.validations = {}
        self.loss = 0.0

    def on_fit_start(self, trainer, module):  # noqa: ARG002
        """Tell the others that this worker is back."""
        tell_that_it_is_back()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        """Plain Lightning gives each batch's part of the loss."""
        self.loss += float(outputs["loss"])
        if trainer.fit_loop._should_accumulate():
            return
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        epoch = trainer.current_epoch
        self.steps[trainer.global_step] = [self.loss, module.norm, rate, epoch, batch_idx]
        self.told[trainer.global_step] = told = []
        for number in range(2):
            fault_at(f"told {trainer.global_step} {number}")
            own = torch.tensor(float(len(batch[0])))
            told.append(float(trainer.strategy.reduce(own, reduce_op="sum")))
        self.loss = 0.0

    def on_validation_end(self, trainer, module):  # noqa: ARG002
        """After the sanity check, too."""
        if not trainer.sanity_checking:
            names = ["val_loss", "val_error", "val_worst", "val_mean_epoch"]
            names += [f"val_{kind}" for kind in SYNCED[1:]]
            found = [float(trainer.callback_metrics[name]) for name in names]
            self.validations[trainer.global_step] = found

    def on_save_checkpoint(self, trainer, module, checkpoint):  # noqa: ARG002
        """The leader writes."""
        fault_at(f"save {trainer.global_step}")


def samples(count, seed):
    """Of a regression."""
    numbers = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=numbers)
    return TensorDataset(inputs, inputs.sin().sum(1))


def make_trainer(name, arguments, tell, *, patience=None, every=None, is_plain=False, ours=None):
    """A quiet one, with a file for each checkpoint."""
    saving = {"every_n_train_steps": every, "save_top_k": -1} if every else {"monitor": "val_loss"}
    saving["save_weights_only"] = bool(ours)
    callbacks = [tell, ModelCheckpoint(dirpath=name, filename="{step}", **saving)]
    if patience:
        callbacks.append(EarlyStopping("val_loss", patience=patience, min_delta=0.02))
    return pl.Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        logger=CSVLogger("logs", name),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **strategy(is_plain=is_plain, **(ours or {})),
        **arguments,
    )


def train(name, batch_size, arguments, *, scheduling="step", resume=None, rel=None, **more):  # noqa: ARG001 - `rel` is the test's
    """One training; gives what it has told, and what a test and a prediction find."""
    torch.manual_seed(0)
    module, tell = Module(scheduling), Tell()
    trainer = make_trainer(name, arguments, tell, **more)
    held, train_set = samples(18, 5), samples(72, 3)
    loader = DataLoader(train_set, batch_size, sampler=Order(len(train_set)))
    trainer.fit(module, loader, DataLoader(held, 4), ckpt_path=resume)
    predicted = trainer.predict(module, DataLoader(held, 5))
    assert [each["batch"] for each in predicted] == list(range(len(predicted)))
    return {
        "is_leader": trainer.is_global_zero,
        "steps": tell.steps,
        "told": tell.told,
        "train_errors": module.errors,
        "validations": tell.validations,
        "global_step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "best": Path(trainer.checkpoint_callback.best_model_path).name,
        "logged": {n: float(v) for n, v in trainer.logged_metrics.items()},
        "test": trainer.test(
            module, [DataLoader(held, 4), DataLoader(train_set, 7)], ckpt_path="best", verbose=False
        ),
        "predicted": torch.cat([each["found"] for each in predicted]).tolist(),
    }


leave_result([train(**training) for training in CASE["trainings"]])
