"""A hook that does something is called once a step, wherever a script has put it."""

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.integrations.lightning import HeteroStrategy
from tests.integrations.lightning.test_trainer_arguments import QUIET, Module

pytestmark = pytest.mark.filterwarnings("ignore")

HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_train_batch_end",
)
NUM_STEPS = 3


def in_class(base, note):
    """A subclass that overrides them."""
    made = {hook: lambda _, *given, hook=hook: note(hook, *given) for hook in HOOKS}
    return type(base.__name__, (base,), made)()


def in_object(base, note):
    """An object to which they were given."""
    found = base()
    for hook in HOOKS:
        setattr(found, hook, lambda *given, hook=hook: note(hook, *given))
    return found


@pytest.mark.parametrize("way", [in_class, in_object])
@pytest.mark.parametrize("base", [pl.Callback, Module])
def test_hooks_are_called(base, way):
    """Those of a callback see the trainer; all are called in Lightning's order."""
    called = []

    def note(hook, *given):
        called.append(hook)
        assert not given or isinstance(given[0], pl.Trainer) is (base is pl.Callback)

    owner = way(base, note)
    is_callback = isinstance(owner, pl.Callback)
    trainer = pl.Trainer(
        **QUIET, strategy=HeteroStrategy(), callbacks=[owner] if is_callback else []
    )
    loader = DataLoader(TensorDataset(torch.ones(4 * NUM_STEPS, 3)), 4)
    trainer.fit(Module() if is_callback else owner, loader)
    assert called == [*HOOKS] * NUM_STEPS
