"""Which models can be trained beside a trainer's own."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError, convert_sync_batch_norm


def plain_model():
    """Nothing special."""
    return nn.Linear(3, 1)


def synchronised():
    """A model that normalises over all workers."""
    return convert_sync_batch_norm(nn.Sequential(nn.BatchNorm1d(3)))


def sgd(model):
    """An optimizer of it."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def tied(lead):
    """A model that holds a layer of the other."""
    return nn.Sequential(lead, nn.Linear(1, 1))


REFUSED = {
    "no name": ({"name": ""}, "letters, digits and _"),
    "a name with a dot": ({"name": "a.b"}, "letters, digits and _"),
    "no text": ({"name": 3}, "letters, digits and _"),
    "twice": ({"name": "known"}, "there is one of that name"),
    "no model": ({"model": lambda _: "x"}, r"add_model\(.critic.\): the model is"),
    "no optimizer": ({"optimizer": lambda _: None}, r"add_model\(.critic.\): the optimizer is"),
    "the other's optimizer": ({"optimizer": lambda _: sgd(plain_model())}, "none of the model's"),
    "a shared layer": ({"model": tied}, "shares parameters"),
    "an option of the trainer": ({"options": {"accumulation_steps": 2}}, "is the trainer's"),
    "an unknown option": ({"options": {"clap": None}}, "clap"),
    "no clip": ({"options": {"clip": 5}}, "clip=5: must be a function"),
    "no scaler": ({"options": {"scaler": 5}}, "must be a torch.amp.GradScaler"),
    "other micro-batches": (
        {
            "trainer": {"micro_batch_size": 2, "equal_micro_batches": True},
            "options": {"micro_batch_size": 4},
        },
        "with equal_micro_batches",
    ),
    "letters of another script": ({"name": "крит"}, "letters, digits and _"),
    "staleness": ({"trainer": {"staleness_bound": 1}}, "staleness_bound"),
    "wait-free": ({"trainer": {"wait_free": True}}, "wait_free"),
    "a scheduler of another": (
        {"options": {"scheduler": torch.optim.lr_scheduler.StepLR(sgd(plain_model()), 1)}},
        "another optimizer",
    ),
    "synchronised layers": ({"model": lambda _: synchronised()}, "convert_sync_batch_norm"),
    "the trainer's own has them": ({"lead": synchronised}, "convert_sync_batch_norm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_beside_is_refused(case):
    """One line, at once."""
    given, words = REFUSED[case]
    lead = given.get("lead", plain_model)()
    loader = DataLoader(TensorDataset(torch.ones(8, 3)), 4)
    trainer = Trainer(lead, sgd(lead), loader, **given.get("trainer", {}))
    if case == "twice":
        known = plain_model()
        trainer.add_model("known", known, sgd(known))
    model = given.get("model", lambda _: plain_model())(lead)
    make = given.get("optimizer", sgd)
    optimizer = make(model) if isinstance(model, nn.Module) else sgd(lead)
    with pytest.raises(UserError, match=words) as found:
        trainer.add_model(given.get("name", "critic"), model, optimizer, **given.get("options", {}))
    assert "\n" not in str(found.value)
