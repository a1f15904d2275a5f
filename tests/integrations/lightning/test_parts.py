"""An optimizer's state in parts under Lightning: what is trained, and what may be saved of it."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from hetero_hvd.errors import UserError
from hetero_hvd.integrations.lightning import HeteroStrategy
from tests.integrations.lightning.test_strategy import Module, loader, make_trainer, weights_of

pytestmark = pytest.mark.filterwarnings("ignore")

ALL_IS_SAVED = "ModelCheckpoint: with shard_optimizer .*: set save_weights_only=True"
IN_PARTS = {
    "nothing is saved": (lambda _: [], ""),
    "the weights are saved": (lambda at: [ModelCheckpoint(at, save_weights_only=True)], ""),
    "all is saved": (lambda at: [ModelCheckpoint(at)], ALL_IS_SAVED),
    "all is saved when it fails": (
        lambda at: [OnExceptionCheckpoint(at)],
        "with shard_optimizer .*leave out OnExceptionCheckpoint",
    ),
}


class Adam(Module):
    """Has a state."""

    def configure_optimizers(self):
        """With a schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


@pytest.mark.parametrize("mode", [True, "auto"])
@pytest.mark.parametrize(("callbacks", "why"), IN_PARTS.values(), ids=IN_PARTS.keys())
def test_a_state_in_parts_trains_the_same_or_is_refused(tmp_path, mode, callbacks, why):
    """Nothing that Lightning saves has that state; it goes on from a file that does."""

    def trainer(**given):
        given = {"enable_checkpointing": True, "max_epochs": 2, **given}
        return make_trainer(strategy=HeteroStrategy(shard_optimizer=mode), **given)

    if why:
        with pytest.raises(UserError, match=why) as caught:
            trainer(callbacks=callbacks(tmp_path)).fit(Adam(), loader())
        assert "\n" not in str(caught.value)
        return
    whole, module = make_trainer(max_epochs=1), Adam()
    whole.fit(module, loader())
    whole.save_checkpoint(tmp_path / "whole")
    make_trainer(max_epochs=2).fit(expected := Adam(), loader())
    for place in (None, tmp_path / "whole"):
        own = trainer(callbacks=callbacks(tmp_path), enable_checkpointing=bool(callbacks(tmp_path)))
        own.fit(module := Adam(), loader(), ckpt_path=place)
        assert torch.equal(weights_of(module), weights_of(expected))
        assert own.optimizers[0].param_groups[0]["lr"] == 0.025
        assert bool(own.optimizers[0].state) == (mode == "auto")
        with pytest.raises(UserError, match=r"trainer.save_checkpoint: .*say weights_only=True"):
            own.save_checkpoint(tmp_path / "more")
        own.save_checkpoint(tmp_path / "more", weights_only=True)
    for kept in [tmp_path / "more", *tmp_path.glob("*.ckpt")]:
        assert "optimizer_states" not in torch.load(kept, weights_only=False)


def test_only_what_the_option_may_be_is_taken():
    """At once."""
    with pytest.raises(UserError, match="shard_optimizer='yes': must be True, False or auto"):
        HeteroStrategy(shard_optimizer="yes")
