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
    "on_before_optimizer_step",
    "on_train_batch_end",
)
TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
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
    trainer.fit(Module() if is_callback else owner, loader())
    assert called == [*HOOKS] * NUM_STEPS


def loader():
    """Samples for so many steps."""
    return DataLoader(TensorDataset(torch.ones(4 * NUM_STEPS, 3)), 4)


class Data(pl.LightningDataModule):
    """The same from a data module."""

    def train_dataloader(self):
        """For training."""
        return loader()


@pytest.mark.parametrize("hook", TRANSFER)
@pytest.mark.parametrize("base", [Module, Data])
def test_a_batch_is_what_its_hooks_make_of_it(base, hook):
    """Each of them alone, of the module or of its data module."""
    seen = []

    def change(_, batch, *given):
        assert [type(each) for each in given] == [torch.device, int][-len(given) :]
        return [each * 2 for each in batch]

    class Looking(Module):
        def training_step(self, batch, batch_idx):
            seen.append(float(batch[0].mean()))
            return super().training_step(batch, batch_idx)

    owner = type("Own", (Looking if base is Module else Data,), {hook: change})()
    module, data = (owner, Data()) if base is Module else (Looking(), owner)
    pl.Trainer(**QUIET, strategy=HeteroStrategy()).fit(module, datamodule=data)
    assert seen == [2.0] * NUM_STEPS


@pytest.mark.parametrize("hook", ["configure_gradient_clipping", "clip_gradients", None])
def test_gradients_are_clipped(hook):
    """By what the module says, or the trainer's argument."""
    clipped = []

    def clip(self, *given, **_):
        clipped.append(given)
        for each in self.parameters():
            each.grad.zero_()

    module = type("Own", (Module,), {hook: clip} if hook else {})()
    before = [each.clone() for each in module.parameters()]
    limit = {} if hook else {"gradient_clip_val": 1e-30}
    pl.Trainer(**QUIET | limit, strategy=HeteroStrategy()).fit(module, loader())
    assert len(clipped) == (NUM_STEPS if hook else 0)
    after = list(module.parameters())
    assert all(torch.allclose(one, other) for one, other in zip(before, after, strict=True))
