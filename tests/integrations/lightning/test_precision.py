"""Which precisions train on which devices together: a card's worker is one by its scaler only."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.integrations.lightning import HeteroStrategy
from hetero_hvd.integrations.lightning.trainer_arguments import PRECISIONS
from tests.integrations.lightning.test_trainer_arguments import QUIET, Module
from tests.worker.rendezvous import Hub, run_together

pytestmark = pytest.mark.filterwarnings("ignore")

CARD, CPU = True, False
MIXES = {"cards": (CARD, CARD), "CPUs": (CPU, CPU), "a card and a CPU": (CARD, CPU)}


def scaler_of(precision, is_card):
    """As Lightning makes it; the one for a card computes on the CPU."""
    if is_card and precision.endswith("-mixed"):
        return MixedPrecision(precision, "cpu").scaler
    trainer = pl.Trainer(accelerator="cpu", precision=precision, logger=False)
    return getattr(trainer.precision_plugin, "scaler", None)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_are_scaled_by_all_or_by_none(precision, mix):
    """Where a card's worker scales and a CPU's does not, nobody trains, in one line."""
    scalers = [scaler_of(precision, is_card) for is_card in MIXES[mix]]

    def train(context):
        model = torch.nn.Linear(3, 1)
        loader = DataLoader(TensorDataset(torch.ones(8, 3)), 4)
        scaler = scalers[context.settings.worker.slot]
        trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, scaler=scaler)
        trainer._state._context = context
        next(trainer.epochs(1))

    if precision != "16-mixed" or mix != "a card and a CPU":
        run_together(Hub(2), train)
        return
    with pytest.raises(
        JobError,
        match=r"^float16: node:1 has no scaler .*, node:0 has one: .*precision='bf16-mixed'",
    ):
        run_together(Hub(2), train)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_fused_optimizer_is_clipped_or_refused(precision, clip, is_fused):
    """Before the first step; plain Lightning ends in it."""

    class Fused(Module):
        def training_step(self, batch, batch_idx):
            kind = self.layer.weight.dtype
            return super().training_step([batch[0].to(kind)], batch_idx)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), fused=is_fused)

    trainer = pl.Trainer(
        **QUIET, strategy=HeteroStrategy(), precision=precision, gradient_clip_val=clip
    )
    loader = DataLoader(TensorDataset(torch.ones(8, 3)), 4)
    if not (clip and is_fused and precision.endswith("-mixed")):
        trainer.fit(Fused(), loader)
        assert trainer.global_step == 2
        return
    with pytest.raises(UserError, match=r"gradient_clip_val=1\.0: .* leave out fused=True"):
        trainer.fit(Fused(), loader)
