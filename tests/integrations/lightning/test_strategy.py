"""What the strategy does by itself, in this process: logs, metrics, states, weights, places."""

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _ResultCollection,
    _ResultMetric,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.lightning import HeteroStrategy
from hetero_hvd.integrations.lightning.loader import TrainingSet, without_samples
from hetero_hvd.integrations.lightning.metrics import ModuleMetrics
from hetero_hvd.integrations.lightning.progress import CallbacksAndLogs, LoopProgress, settled
from hetero_hvd.integrations.lightning.results import StepResults, entries_of, put_entries

pytestmark = pytest.mark.filterwarnings("ignore")

LOGGED = {"on_step": True, "on_epoch": True, "sync_dist": True}


class Module(pl.LightningModule):
    """A regression that may weigh its loss, and notes the hooks that it gets."""

    def __init__(self, weights=None, precision=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1, bias=False)
        self.weights = weights
        self.precision = precision
        self.hooks = []
        self.error = torchmetrics.MeanAbsoluteError()

    def training_step(self, batch, batch_idx):
        """The mean square, and its weight."""
        self.hooks.append("training_step")
        assert batch[0].dtype is self.precision
        loss = self.layer(batch[0]).square().mean()
        self.log("train", loss, on_step=False, on_epoch=True)
        if self.weights is None:
            return loss
        return {"loss": loss, "loss_weight": self.weights[batch_idx]}

    def validation_step(self, batch, batch_idx):
        """A mean and a metric."""
        assert batch_idx >= 0
        found = self.layer(batch[0]).squeeze(-1)
        self.error(found, torch.zeros_like(found))
        self.log("val", found.square().mean())
        self.log("val_error", self.error)

    def configure_optimizers(self):
        """One."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_after_backward(self):
        """The gradients are there."""
        self.hooks.append("on_after_backward")
        assert self.layer.weight.grad is not None

    def on_before_zero_grad(self, optimizer):
        """Before a step."""
        assert isinstance(optimizer, torch.optim.Optimizer)
        self.hooks.append("on_before_zero_grad")

    def on_train_epoch_end(self):
        """After the last one."""
        self.hooks.append("on_train_epoch_end")


class Stream(IterableDataset):
    """Samples whose number nobody knows."""

    def __iter__(self):
        return iter(torch.ones(7, 1, 3))


def loader(count=10, size=2):
    """Samples of a regression."""
    numbers = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(count, 3, generator=numbers)), size)


def make_trainer(*, is_plain=False, **given):
    """A trainer, ours or not."""
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    quiet |= {"enable_checkpointing": False, "enable_model_summary": False, "max_epochs": 1}
    ours = {} if is_plain else {"strategy": HeteroStrategy()}
    return pl.Trainer(**ours | quiet | given)


def weights_of(module):
    """What has become of it."""
    return module.layer.weight.detach().clone()


def test_hooks_come_in_lightning_s_order():
    """Once a step, and at the end of the epoch; the loop's counters are Lightning's."""
    ours, theirs = Module(), Module()
    trainers = [make_trainer(), make_trainer(is_plain=True)]
    for trainer, module in zip(trainers, (ours, theirs), strict=True):
        trainer.fit(module, loader(), loader(4))
    assert sorted(ours.hooks) == sorted(theirs.hooks)
    assert ours.hooks[-1] == theirs.hooks[-1] == "on_train_epoch_end"
    mine, wanted = (trainer.fit_loop.state_dict() for trainer in trainers)
    assert mine == wanted
    assert torch.equal(weights_of(ours), weights_of(theirs))


@pytest.mark.parametrize("weights", [[3.0, 1.0], [1.0, 0.0]])
def test_a_loss_may_have_a_weight(weights):
    """In an accumulated step each pass counts by it; with 0 it does not."""
    weighted = Module([weights[1]] * 9)
    trainer = make_trainer(accumulate_grad_batches=2, max_steps=1)
    # The index is that of the step's last batch, in each pass: the weight follows the pass here.
    passes = iter(weights)
    weighted.weights = type("Weights", (), {"__getitem__": lambda *_: next(passes)})()
    trainer.fit(weighted, loader(4))
    plain = Module()
    samples = loader(4).dataset.tensors[0]
    parts = [plain.layer(samples[s]).square().mean() for s in (slice(0, 2), slice(2, 4))]
    loss = sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights)
    loss.backward()
    expected = plain.layer.weight - 0.1 * plain.layer.weight.grad
    assert torch.allclose(weights_of(weighted), expected, rtol=1e-6)


def test_a_stream_ends_when_it_ends():
    """With a validation after it, and schedules by epoch; `max_steps` ends it as well."""
    module = Module()
    trainer = make_trainer(max_epochs=2)
    trainer.fit(module, DataLoader(Stream(), 2), loader(4))
    assert trainer.global_step == 8
    assert trainer.current_epoch == 2
    assert module.hooks.count("on_train_epoch_end") == 2
    assert "val" in trainer.callback_metrics
    trainer = make_trainer(max_epochs=-1, max_steps=3)
    trainer.fit(Module(), DataLoader(Stream(), 2))
    assert trainer.global_step == 3


@pytest.mark.parametrize("precision", ["64-true", "16-mixed"])
def test_other_precisions_train_as_without_us(precision):
    """The scaler is ours to step; weights of 64 bits keep them."""
    kind = torch.float64 if precision == "64-true" else torch.float32
    found = []
    for is_plain in (False, True):
        module = Module(precision=kind)
        make_trainer(is_plain=is_plain, precision=precision).fit(module, loader())
        found.append(weights_of(module))
    assert torch.allclose(*found, rtol=1e-3)
    assert found[0].dtype is kind


@pytest.mark.parametrize("module", ["before", "after"])
def test_validation_outside_of_fit_gives_all(module):
    """Before fit by each worker as a whole; afterwards together."""
    found = []
    for is_plain in (False, True):
        model, trainer = Module(), make_trainer(is_plain=is_plain)
        if module == "after":
            trainer.fit(model, loader())
        found.append(trainer.validate(model, loader(7, 2), verbose=False))
    mine, theirs = found
    assert mine == [pytest.approx(each, rel=1e-6) for each in theirs]


def test_a_training_goes_on_in_the_midst_of_an_epoch(tmp_path):
    """From a checkpoint of either: at the next batch, which plain Lightning would begin anew."""
    whole = Module()
    keeper = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = make_trainer(callbacks=[keeper], enable_checkpointing=True, max_epochs=2)
    trainer.fit(whole, loader())
    for step in (4, 5, 10):
        path = tmp_path / f"step={step}.ckpt"
        if step == 5:
            continue
        again = Module()
        trainer = make_trainer(max_epochs=2)
        trainer.fit(again, loader(), ckpt_path=path)
        assert torch.equal(weights_of(again), weights_of(whole))
        assert (trainer.global_step, trainer.current_epoch) == (10, 2)


def test_early_stopping_ends_all():
    """At the end of an epoch, not before `min_epochs`."""
    stopping = EarlyStopping("val", patience=1, min_delta=100.0)
    trainer = make_trainer(max_epochs=9, min_epochs=4, callbacks=[stopping])
    trainer.fit(Module(), loader(), loader(4))
    assert trainer.current_epoch == 4


# Logs.


def held_back(*passes, attempt=1):
    """A collection to which passes have logged (value, samples)."""
    results = StepResults(lambda value, *_: value)
    for value, num_samples in passes:
        results.begin_pass(attempt, num_samples)
        results.log("training_step", "a", torch.tensor(value), **LOGGED)
        results.log("training_step", "top", torch.tensor(value), reduce_fx="max", **LOGGED)
        results.end_pass()
    return results


def test_passes_are_one_value_of_a_step():
    """A mean by samples, or another reduction; a step that is taken again counts once."""
    results = held_back((1.0, 3), (5.0, 1))
    results.begin_pass(2, 3)
    results.log("training_step", "a", torch.tensor(2.0), **LOGGED)
    results.end_pass()
    results.begin_pass(2, 1)
    results.log("training_step", "a", torch.tensor(6.0), **LOGGED)
    results.end_pass()
    assert not results
    results.flush(None)
    assert results["training_step.a"].compute() == 3.0
    assert "training_step.top" not in results
    results.flush(None)
    assert results["training_step.a"].cumulated_batch_size == 4


def test_what_is_synced_is_that_of_all_workers():
    """Also on a worker that had no part of the step; then that of one that has."""
    others = held_back((1.0, 3), (5.0, 1))
    told = []
    others.flush(lambda payload: told.append(payload) or [payload])
    idle = StepResults(lambda value, *_: 2 * value)
    idle.flush(lambda mine: [mine, *told, *told], some_idle=True)
    assert idle["training_step.a"].compute() == 2.0
    assert idle["training_step.a"].cumulated_batch_size == 8
    assert idle["training_step.top"].compute() == 5.0
    idle.begin_pass(2, 2)
    idle.log("training_step", "a", torch.tensor(8.0), **LOGGED)
    idle.end_pass()
    idle.flush(None)
    assert idle["training_step.a"].compute() == 3.2
    idle.log("on_train_batch_end", "b", torch.tensor(3.0), reduce_fx="sum", **LOGGED)
    assert idle["on_train_batch_end.b"].compute() == 6.0


@pytest.mark.parametrize(
    ("kind", "on_step", "on_epoch", "dtype"),
    [
        ("mean", True, True, torch.float32),
        ("mean", True, False, torch.float64),
        ("mean", False, True, torch.bfloat16),
        ("sum", True, True, torch.int64),
        ("sum", True, False, torch.bfloat16),
        ("max", True, True, torch.float64),
        ("max", False, True, torch.float32),
        ("min", True, True, torch.bfloat16),
        ("min", True, False, torch.float32),
    ],
)
def test_a_value_adds_up_as_in_lightning_and_nothing_moves_twice(
    kind, on_step, on_epoch, dtype, monkeypatch
):
    """Whatever is logged, through several epochs; what is moved is moved at the first call."""
    own, lightning = StepResults(lambda value, *_: value), _ResultCollection(training=True)
    moved = []
    move = _ResultMetric.to
    monkeypatch.setattr(_ResultMetric, "to", lambda *at: moved.append(id(at[0])) or move(*at))
    named = {"on_step": on_step, "on_epoch": on_epoch}
    for value in (3, 7, 5):
        own.begin_pass(value, 4)
        own.log("training_step", "a", torch.tensor(value, dtype=dtype), reduce_fx=kind, **named)
        own.end_pass()
        own.flush(None)
        given = {"reduce_fx": kind, "batch_size": 4, **named}
        lightning.log("training_step", "a", torch.tensor(value, dtype=dtype), **given)
        for step in (True, False):
            assert own.metrics(on_step=step) == lightning.metrics(on_step=step)
        if value == 7:
            own.reset()
            lightning.reset()
    assert moved.count(id(own["training_step.a"])) == 1
    assert moved.count(id(lightning["training_step.a"])) == 3


def test_a_name_with_other_arguments_is_refused_as_in_lightning():
    """Also after it was known."""
    results = StepResults(lambda value, *_: value)
    for _ in range(2):
        results.log("on_train_batch_end", "a", torch.tensor(1.0), batch_size=1)
    with pytest.raises(MisconfigurationException, match="twice"):
        results.log("on_train_batch_end", "a", torch.tensor(1.0), batch_size=1, prog_bar=True)


def test_entries_are_put_together():
    """Those of several workers, in whatever way they are reduced, and metric objects by place."""
    module = torch.nn.ModuleDict({"error": torchmetrics.MeanAbsoluteError()})
    metrics = ModuleMetrics(module)
    parts = []
    for value in (1.0, 4.0):
        results = _ResultCollection(training=False)
        for kind in ("mean", "sum", "max", "min"):
            results.log("validation_step", kind, torch.tensor(value), reduce_fx=kind, batch_size=2)
        results.log("validation_step", "error", module["error"], metric_attribute="error")
        parts.append(entries_of(results))
    merged = _ResultCollection(training=False)
    put_entries(merged, [[], *parts], metrics.find, torch.device("cpu"))
    found = {name: float(value) for name, value in merged.metrics(on_step=False)["log"].items()}
    assert found | {"error": 0.0} == {"mean": 2.5, "sum": 5.0, "max": 4.0, "min": 1.0, "error": 0.0}
    assert merged["validation_step.error"].value is module["error"]


def test_metrics_are_put_together():
    """Sums, and lists in the order of the workers; who has seen nothing does not count."""

    def fresh():
        return torch.nn.ModuleDict(
            {
                "error": torchmetrics.MeanAbsoluteError(),
                "all": torchmetrics.CatMetric(),
                "unused": torchmetrics.MaxMetric(),
            }
        )

    parts = []
    for values in ([1.0, 2.0], [], [6.0]):
        module = fresh()
        for value in values:
            module["error"].update(torch.tensor([value]), torch.zeros(1))
            module["all"].update(torch.tensor([value]))
        parts.append(ModuleMetrics(module).take())
    module = fresh()
    ModuleMetrics(module).put(parts)
    assert module["error"].compute() == 3.0
    assert module["all"].compute().tolist() == [1.0, 2.0, 6.0]
    assert not module["unused"].update_called


# States.


def test_a_joiner_has_what_the_others_have(tmp_path):
    """Counters, callbacks, folders and logs; what is under way is not told."""
    stopping, keeper = EarlyStopping("val", patience=5), ModelCheckpoint(tmp_path, monitor="val")
    given = {"enable_checkpointing": True, "callbacks": [stopping, keeper], "max_epochs": 2}
    trainer = make_trainer(**given)
    trainer.fit(Module(), loader(), loader(4))
    fit = trainer.strategy._fit
    fit.results.log("training_step", "train", torch.tensor(1.5), on_epoch=True, batch_size=2)
    progress, memory = (
        LoopProgress(trainer, fit).state_dict(),
        CallbacksAndLogs(trainer, fit).state_dict(),
    )
    other = make_trainer(
        enable_checkpointing=True,
        callbacks=[
            EarlyStopping("val", patience=5),
            ModelCheckpoint(tmp_path / "x", monitor="val"),
        ],
    )
    other.fit(Module(), loader(2), loader(4))
    other_fit = other.strategy._fit
    other_fit._has_begun_step = True
    LoopProgress(other, other_fit).load_state_dict(progress)
    CallbacksAndLogs(other, other_fit).load_state_dict(memory)
    assert not other_fit._has_begun_step
    assert (other.global_step, other.current_epoch) == (10, 2)
    assert not other.fit_loop.restarting
    assert other.early_stopping_callback.best_score == stopping.best_score
    assert other.checkpoint_callback.best_model_path == keeper.best_model_path
    assert other.checkpoint_callback.dirpath == keeper.dirpath
    assert other_fit.results["training_step.train"].compute() == 1.5


def test_what_is_under_way_is_left_out_of_a_state():
    """Each counter stands at what is completed."""
    counters = {"ready": 3, "started": 3, "processed": 2, "completed": 2}
    state = {"a": {"current": counters, "is_last_batch": True}, "b": 1}
    after = dict.fromkeys(counters, 2)
    assert settled(state) == {"a": {"current": after, "is_last_batch": True}, "b": 1}


# The loader.


@pytest.mark.parametrize(("drop_last", "length"), [(False, 5), (True, 4)])
def test_the_length_is_that_of_whole_steps(drop_last, length):
    """With two batches in each; what else the loader has is there."""
    data = TensorDataset(torch.zeros(10, 3))
    found = TrainingSet(DataLoader(data, 2, drop_last=drop_last), 2)
    assert len(found) == length
    assert found.batch_size == 2
    assert list(found) == []
    assert not hasattr(found, "state_dict")


def test_a_batch_without_samples_has_the_same_form():
    """Whatever it is made of."""
    batch = {"a": torch.zeros(3, 2), "b": (torch.zeros(3), [torch.ones(3, 1)]), "c": "text"}
    found = without_samples(batch)
    assert found["a"].shape == (0, 2)
    assert found["b"][1][0].shape == (0, 1)
    assert found["c"] == "text"
    assert without_samples(None) is None


def test_alone_everybody_s_is_one_s_own():
    """What Lightning asks of all workers."""
    strategy = HeteroStrategy()
    value = torch.tensor([1.0, 2.0])
    assert strategy.reduce(value) is value
    assert strategy.all_gather(value) is value
    assert strategy.broadcast("x") == "x"
    assert strategy.reduce_boolean_decision(True)
    assert (strategy.world_size, strategy.global_rank, strategy.is_global_zero) == (1, 0, True)


@pytest.mark.parametrize(
    ("kind", "expected"), [("mean", 2.0), ("sum", 6.0), ("max", 4.0), ("min", 0.0), (None, 2.0)]
)
def test_values_of_all_workers_are_reduced(monkeypatch, kind, expected):
    """As it is asked for."""
    strategy = HeteroStrategy()
    others = [torch.tensor(0.0), torch.tensor(2.0), torch.tensor(4.0)]
    monkeypatch.setattr(strategy, "gather_tensors", lambda *_: others)
    strategy._are_together = True
    assert strategy.reduce(torch.tensor(2.0), reduce_op=kind) == expected
    with pytest.raises(UserError, match="must be mean, sum, max or min"):
        strategy.reduce(torch.tensor(2.0), reduce_op="product")
