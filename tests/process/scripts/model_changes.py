"""A transformer with a causal mask, to which a block is added, and workers without a share."""

import torch
from alone import Alone, seeded
from scripted import follow, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.errors import JobError
from hetero_hvd.worker.session.worker_context import init

BATCH, LENGTH = 8, 5
PLANS = [[0, 5, 3], [8, 0, 0], [3, 3, 2]]
LATE = {"staleness_bound": 1, "staleness_warmup_steps": 0, "lookahead": False}


class Transformer(nn.Module):
    """Each token sees those before it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([new_block()])
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        """Block by block; the mean of what came in is kept."""
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return x


def new_block():
    """Attention and two layers."""
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)


def trained(trainer_class=hetero_hvd.Trainer, only_on=None, **options):
    """What the model holds in the end; a block more from the second epoch on, where it is meant."""
    follow(PLANS)
    with seeded():
        x, model, more = torch.randn(3 * BATCH + 1, LENGTH, 8), Transformer(), new_block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x), BATCH, shuffle=True)
    trainer = trainer_class(model, optimizer, loader, **options)
    for epoch in trainer.epochs(2):
        if epoch and only_on in (None, init().collective.rank):
            model.blocks.append(more)
            optimizer.add_param_group({"params": more.parameters()})
        for (mine,) in trainer.batches():
            trainer.step(lambda mine: (model(mine) - 1.0).square().mean(), mine)
    return {
        "sees": (model.mask == 0).int().tolist(),
        "mean": model.mean.tolist(),
        "weights": nn.utils.parameters_to_vector(model.parameters()).tolist(),
    }


def refusal():
    """What a worker is told where one has another model."""
    try:
        trained(only_on=1)
    except JobError as error:
        return str(error)
    return ""


init()
results = {"alone": trained(Alone), "synchronous": trained(), "late": trained(**LATE)}
report(results | {"refusal": refusal()})
