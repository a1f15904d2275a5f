"""What a state in parts was not proven with is refused by name, in one line."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.keeping import Keeping
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer

REFUSED = {
    "wait-free": ({"wait_free": True}, "not with mode wait_free"),
    "late gradients": ({"staleness_bound": 2}, "not with staleness_bound=2"),
}

WRONG = (1, 0, None, "True", "yes", "Auto", [True], 0.5)


def parts():
    """A model, its optimizer and a loader."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    return model, optimizer, DataLoader(TensorDataset(torch.zeros(8, 4)), 4)


@pytest.mark.parametrize("mode", [True, "auto"])
@pytest.mark.parametrize(("options", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_other_modes_are_refused(options, why, mode):
    """Before anything is trained."""
    with pytest.raises(UserError) as error:
        Trainer(*parts(), **{"shard_optimizer": mode, **options})
    assert str(error.value).startswith("shard_optimizer")
    assert why in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_other_values_are_refused(value):
    """Naming those that are allowed."""
    with pytest.raises(UserError) as error:
        Trainer(*parts(), shard_optimizer=value)
    assert str(error.value) == f"shard_optimizer={value!r}: must be True, False or auto"


def test_a_second_model_is_refused():
    """In whose steps the first one's parts would have to wait."""
    trainer = Trainer(*parts(), shard_optimizer=True)
    model, optimizer, _ = parts()
    with pytest.raises(UserError, match="not with shard_optimizer"):
        trainer.add_model("critic", model, optimizer)


def test_the_best_state_is_refused():
    """One worker writes it by itself."""
    _, optimizer, _ = parts()
    settings = CheckpointSettings(folder="kept", run="r", best="accuracy")
    with pytest.raises(UserError, match="shard_optimizer: not with checkpoint_best"):
        Keeping(*[None] * 5, settings=settings, shards=ShardedOptimizer(optimizer))


def add_parameters(model, optimizer):
    """They would lie where others lie."""
    model.more = torch.nn.Linear(4, 4)
    optimizer.add_param_group({"params": model.more.parameters()})


def load_a_state(_, optimizer):
    """It would be in no part."""
    like, other, _ = parts()
    like(torch.ones(1, 4)).sum().backward()
    other.step()
    optimizer.load_state_dict(other.state_dict())


LATE = {
    "parameters were added": add_parameters,
    "a state was loaded into": load_a_state,
    "the optimizer's state lies in parts": lambda _, optimizer: optimizer.state_dict(),
    "each further trainer an optimizer of its own": lambda model, optimizer: Trainer(
        model, optimizer, parts()[2], shard_optimizer=True
    ),
}


@pytest.mark.parametrize("why", LATE)
def test_what_is_done_too_late_is_refused(why):
    """In place of a training that goes on with something else than the script means."""
    model, optimizer, loader = parts()
    optimizer.state_dict()  # it is whole until the workers have met
    trainer = Trainer(model, optimizer, loader, shard_optimizer=True)

    def train():
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                trainer.step(lambda x: model(x).sum(), x)
                LATE[why](model, optimizer)

    with pytest.raises(UserError, match=f"shard_optimizer: .*{why}") as error:
        train()
    assert "\n" not in str(error.value)
