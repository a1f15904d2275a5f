"""What the trainer does by itself, in this process: weights, roles, states, refusals."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from transformers import TrainerCallback, TrainingArguments

from hetero_hvd.data import StreamShards
from hetero_hvd.errors import UserError
from hetero_hvd.integrations.huggingface import Trainer
from hetero_hvd.integrations.huggingface.evaluation import (
    Prediction,
    Replay,
    num_samples_of,
    packed,
    unpacked,
)
from hetero_hvd.integrations.huggingface.progress_bar import LateProgressBar
from hetero_hvd.integrations.huggingface.state import Logs, TrainingProgress
from hetero_hvd.integrations.huggingface.trainer import count_labels
from hetero_hvd.integrations.steps import Steps, numbers
from tests.data.streams import numbered

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
LABELS = torch.tensor([[5, 6, 7, -100], [5, 6, -100, -100]])


class Regression(torch.nn.Module):
    """A model as transformers expects one, with the least that it asks for."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, inputs, labels=None):
        """Loss and output."""
        found = self.layer(inputs).squeeze(-1)
        loss = None if labels is None else torch.nn.functional.mse_loss(found, labels)
        return {"loss": loss, "logits": found}

    def floating_point_ops(self, _):
        """Of no interest here."""
        return 1


def rows(count):
    """Samples of a regression."""
    torch.manual_seed(2)
    return [{"inputs": torch.randn(3), "labels": torch.randn(())} for _ in range(count)]


def make_trainer(folder, **more):
    """A trainer of a few steps."""
    given = {"output_dir": str(folder), "report_to": "none", "disable_tqdm": True}
    given |= {"save_strategy": "no", "num_train_epochs": 2, "remove_unused_columns": False}
    ours = ("callbacks", "eval_dataset", "shard_optimizer")
    named = {name: more.pop(name) for name in ours if name in more}
    args = TrainingArguments(**given | {"use_cpu": True} | more)
    torch.manual_seed(0)
    return Trainer(Regression(), args, train_dataset=rows(20), **named)


@pytest.mark.parametrize(
    ("inputs", "are_shifted", "count"),
    [
        ({"labels": LABELS}, False, 5),
        ({"labels": LABELS}, True, 3),
        ({"labels": LABELS, "shift_labels": LABELS[:, 1:]}, True, 3),
        ({"labels": torch.tensor([1, 0])}, False, 2),
        ({"labels": torch.tensor([1, -100])}, False, 1),
        ({"labels": torch.tensor([0.5, 1.5])}, False, None),
        ({"labels": None}, False, None),
        ({"input_ids": IDS}, False, None),
        ({"labels": [{"boxes": IDS}]}, False, None),
    ],
)
def test_a_loss_has_the_weight_of_what_it_is_a_mean_of(inputs, are_shifted, count):
    """Labels that count, where they are classes; else samples."""
    found = count_labels(inputs, are_shifted=are_shifted)
    assert count is None if found is None else int(found) == count


def test_predictions_travel_in_any_nesting():
    """Tensors in tuples and dicts, and what is not there."""
    logits = (torch.ones(2, 3), {"more": [torch.zeros(2)]})
    one = Prediction(
        num_samples=2, loss=torch.tensor(0.5), logits=logits, labels=None, inputs={"x": IDS}
    )
    (found,) = unpacked(packed([one]))
    assert found.num_samples == 2
    assert torch.equal(found.logits[0], logits[0])
    assert torch.equal(found.logits[1]["more"][0], torch.zeros(2))
    assert found.labels is None
    assert torch.equal(found.as_batch("y")["x"], IDS)


def test_outputs_that_are_more_than_tensors_are_refused():
    """In one line that says what to do."""
    one = Prediction(num_samples=1, loss=None, logits=Regression(), labels=None, inputs={})
    with pytest.raises(UserError, match="ignore_keys"):
        unpacked(packed([one]))


def test_a_replay_says_where_the_set_ends():
    """As a loader of accelerate does: the last batch may be smaller."""
    found = [
        Prediction(num_samples=size, loss=None, logits=None, labels=None, inputs={})
        for size in (4, 3)
    ]
    replay = Replay(found, range(7), 4, "input_ids")
    seen = [
        (num_samples_of(batch), replay.gradient_state.end_of_dataloader, replay.remainder)
        for batch in replay
    ]
    assert seen == [(4, False, 3), (3, True, 3)]
    assert len(replay) == 2
    assert not replay.gradient_state.in_dataloader


@pytest.mark.parametrize("value", [{"a": 1.5, "b": 2, "c": "x", "d e": 1.0, "f": [1]}])
def test_only_numbers_are_recorded(value):
    """Under names that a record can hold."""
    assert numbers(value) == {"a": 1.5, "b": 2.0}


@pytest.mark.parametrize(
    "job",
    [
        {"HETERO_HVD_MODE": "wait_free"},
        {"HETERO_HVD_STALENESS_BOUND": "2"},
    ],
)
def test_a_job_whose_steps_overlap_is_refused(tmp_path, monkeypatch, job):
    """Its steps are counted as they end, one after the other."""
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="one after the other"):
        make_trainer(tmp_path)


def test_samples_of_a_stream_s_shards_are_not_grouped_by_length(tmp_path):
    """That order would read each shard again and again; it is not left out in silence."""
    trainer = make_trainer(tmp_path, train_sampling_strategy="group_by_length")
    trainer.train_dataset = StreamShards(numbered([7, 5]), [7, 5])
    with pytest.raises(UserError, match="group_by_length of StreamShards"):
        trainer.get_train_dataloader()


@pytest.mark.parametrize(
    ("more", "is_shuffled"), [({}, True), ({"train_sampling_strategy": "sequential"}, False)]
)
def test_shards_of_a_stream_are_read_on(tmp_path, more, is_shuffled):
    """In the order for the samples of a whole step, and each sample once in an epoch."""
    lengths = [7, 5, 8]
    stream = StreamShards(numbered(lengths), lengths)
    trainer = make_trainer(tmp_path, gradient_accumulation_steps=2, num_train_epochs=1, **more)
    trainer.train_dataset = stream
    size = trainer.args.train_batch_size
    sampler = trainer.get_train_dataloader().batch_sampler.sampler
    np.random.seed(3)  # noqa: NPY002 - as the trainer does
    order = list(sampler)
    np.random.seed(3)  # noqa: NPY002
    assert order == list(stream.sampler(2 * size, shuffle=is_shuffled))
    seen = []
    trainer.data_collator = lambda rows: (
        seen.extend(rows)
        or {
            "inputs": torch.ones(len(rows), 3),
            "labels": torch.ones(len(rows)),
        }
    )
    trainer.train()
    assert sorted(seen) == list(range(20))


def test_a_batch_size_that_is_to_be_found_stays(tmp_path, monkeypatch):
    """Short memory begins no other training on this worker alone; nor does a checkpoint say it."""
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=3, auto_find_batch_size=True)
    trainer.train()
    state = tmp_path / "checkpoint-3" / "trainer_state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"train_batch_size": 2}))
    begun = []

    def short(*_, **__):
        begun.append(trainer._train_batch_size)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer, "_inner_training_loop", short)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train(resume_from_checkpoint=str(state.parent))
    assert begun == [8]


def test_a_search_is_refused(tmp_path):
    """With what to do instead."""
    with pytest.raises(UserError, match="one job for each trial"):
        make_trainer(tmp_path).hyperparameter_search()


STEPS = {"save_strategy": "steps", "save_steps": 3}
BEST = {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss"}
NOT_WHOLE = "TrainingArguments.save_only_model=False: with shard_optimizer .*: set save_only_model"
IN_PARTS = {
    "nothing is saved": ({}, ""),
    "the model is saved": (STEPS | {"save_only_model": True}, ""),
    "the best model is saved": (BEST | {"save_only_model": True}, ""),
    "all is saved": (STEPS, NOT_WHOLE),
    "all of the best is saved": (BEST, NOT_WHOLE),
    "another optimizer": ({"optim": "adafactor"}, "shard_optimizer: Adafactor "),
    "no such value": ({"shard_optimizer": "yes"}, "shard_optimizer='yes': must be True, False or"),
}


@pytest.mark.parametrize("mode", [True, "auto"])
@pytest.mark.parametrize(("more", "why"), IN_PARTS.values(), ids=IN_PARTS.keys())
def test_a_state_in_parts_trains_the_same_or_is_refused(tmp_path, mode, more, why):
    """Nothing that transformers saves has that state; it goes on from a file that does."""
    more = {"eval_dataset": rows(5), **more}
    if why:
        with pytest.raises(UserError, match=why) as caught:
            make_trainer(tmp_path, **{"shard_optimizer": mode} | more).train()
        assert "\n" not in str(caught.value)
        return
    whole = make_trainer(tmp_path / "whole", **more | STEPS | {"save_only_model": False})
    whole.train()
    resumed = str(tmp_path / "whole" / "checkpoint-3")
    for place in (None, resumed):
        trainer = make_trainer(tmp_path / f"parts-{bool(place)}", shard_optimizer=mode, **more)
        trainer.train(resume_from_checkpoint=place)
        assert torch.equal(trainer.model.layer.weight, whole.model.layer.weight)
        assert trainer.lr_scheduler.get_last_lr() == whole.lr_scheduler.get_last_lr()
        assert bool(trainer.optimizer.state) == (mode == "auto")
    assert not list(tmp_path.glob("parts*/*/optimizer.pt"))
    assert bool(list(tmp_path.glob("parts*/*/model.safetensors"))) == ("save_strategy" in more)


class StopsEarly(TrainerCallback):
    """Ends an epoch after its second step, and notes what it is told."""

    def __init__(self):
        self.told = []


def noting(event):
    """A method that notes its call."""

    def note(self, _args, state, control, **_):
        self.told.append(event)
        control.should_epoch_stop |= event == "on_step_end" and state.global_step % 2 == 0

    return note


IN_STEP = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
for name in ("on_epoch_begin", *IN_STEP, "on_epoch_end", "on_train_end"):
    setattr(StopsEarly, name, noting(name))


@pytest.mark.parametrize("base", [Trainer, transformers.Trainer])
def test_callbacks_are_called_in_the_order_of_transformers(tmp_path, base):
    """A callback may end an epoch; the next one begins with all samples."""
    seen = StopsEarly()
    args = TrainingArguments(
        str(tmp_path), report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True,
        num_train_epochs=2, per_device_train_batch_size=4, remove_unused_columns=False,
    )  # fmt: skip
    trainer = base(Regression(), args, train_dataset=rows(20), callbacks=[seen])
    assert trainer.train().global_step == 4
    epoch = ["on_epoch_begin", *IN_STEP * 2, "on_epoch_end"]
    assert seen.told == [*epoch * 2, "on_train_end"]


def test_what_a_joiner_is_told_is_all_that_decides(tmp_path):
    """State, control, callbacks and running sums go over; times and logs go over uncompared."""
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=3)
    more = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    one = make_trainer(tmp_path / "one", callbacks=[stopping], eval_dataset=rows(5), **more)
    one.train()
    stopping.early_stopping_patience_counter = 2
    one.control.should_save = True
    fresh = transformers.EarlyStoppingCallback(early_stopping_patience=3)
    other = make_trainer(tmp_path / "other", callbacks=[fresh], eval_dataset=rows(5), **more)
    other._begin_totals()
    other.set_running_totals(one.running_totals() | {"saved_step": 0})
    for part in (TrainingProgress, Logs):
        state = part(one).state_dict()
        part(other).load_state_dict(json.loads(json.dumps(state)))
        assert part(other).state_dict() == state
    assert Logs.may_differ
    assert fresh.early_stopping_patience_counter == 2
    assert other.control.should_save
    assert other.state.best_model_checkpoint.startswith(str(tmp_path / "other"))
    assert other.state.log_history == one.state.log_history


@pytest.mark.parametrize(
    ("own", "others", "after", "is_skipped"),
    [(1024.0, 512.0, 512.0, False), (256.0, 512.0, 256.0, True), (256.0, 512.0, 512.0, False)],
)
def test_who_takes_over_a_state_knows_its_loss_scale(tmp_path, own, others, after, is_skipped):
    """Whether a step changed nothing is told by the others' scale before it, not by one's own."""
    one, other = make_trainer(tmp_path / "one"), make_trainer(tmp_path / "other")
    for trainer, scale in ((one, others), (other, own)):
        trainer._begin_totals()
        trainer._scale = scale
    other.accelerator.scaler = SimpleNamespace(get_scale=lambda: after, is_enabled=lambda: True)
    other.set_running_totals(json.loads(json.dumps(one.running_totals())))
    assert other._add_loss(1.0) == is_skipped


def test_a_bar_is_opened_by_whoever_leads_now():
    """A worker that becomes the leader in the middle of training has none yet."""
    bar, state = LateProgressBar(), transformers.TrainerState(max_steps=3, global_step=2)
    state.is_world_process_zero = False
    bar.on_train_begin(None, state, None)
    assert bar.training_bar is None
    bar.on_train_end(None, state, None)
    state.is_world_process_zero = True
    bar.on_step_end(None, state, None)
    assert bar.training_bar.n == 2
    bar.on_train_end(None, state, None)
    assert bar.training_bar is None


def test_steps_tell_where_training_is():
    """And begin where another trainer has loaded its state."""
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 3)), 4)
    model = torch.nn.Linear(3, 1)
    steps = Steps(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    steps.begin_at(1, 1, 4)
    seen = []
    for _ in steps.epochs(2):
        for batch in steps.batches():
            seen.append((steps.epoch, steps.step_in_epoch, steps.applied_steps))
            steps.step(lambda x: model(x).square().mean(), *batch)
            assert torch.equal(steps.last_batches[0][0], batch[0])
        assert steps.has_all_steps
        assert steps.gather(b"here", "test") == [b"here"]
    assert seen == [(1, 1, 4), (1, 2, 5)]
