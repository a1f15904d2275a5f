"""What is computed over whole batches and sets: running statistics and metrics."""

import torch
from alone import seeded
from scripted import follow, report
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.core.data.shards import permutation
from hetero_hvd.worker.session.worker_context import init

SIZE, BATCH = 50, 16
PLANS = [[5, 3, 8], [0, 9, 7], [16, 0, 0], [2, 2, 12]]


def running_statistics():
    """Errors of the running mean after each epoch, and what must be the same on all workers."""
    follow(PLANS)
    with seeded():
        x = torch.randn(3 * BATCH, 6)  # a normalisation layer refuses a share of one sample
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
        alone = nn.BatchNorm1d(6)
    loader = DataLoader(TensorDataset(x), BATCH, shuffle=True)
    trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    errors = []
    for epoch in trainer.epochs(3):
        for (mine,) in trainer.batches():
            trainer.step(lambda mine: model(mine).mean(), mine)
        order = permutation(len(x), seed=0, epoch=epoch)
        for start in range(0, len(x), BATCH):
            alone(x[order[start : start + BATCH]])
        errors.append((model[0].running_mean - alone.running_mean).abs().max().item())
    return {
        "errors": errors,
        "buffers": [b.tolist() for b in model.buffers()],
        "moved": alone.running_mean.abs().max().item(),
    }


def evaluation():
    """Metrics over a set, by samples and by weights, while the shares change."""
    follow(PLANS)
    with seeded():
        x, y = torch.randn(53, 6, dtype=torch.float64), torch.randint(4, (53,))
        weights = torch.rand(53, dtype=torch.float64) * (torch.arange(53) % 3 > 0)
        model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)).double()
    train = DataLoader(TensorDataset(x[:SIZE], y[:SIZE]), BATCH)
    held_out = DataLoader(TensorDataset(x, y, weights), 8)
    trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), train)

    def by_sample(x, y, _):
        return {
            "loss": cross_entropy(model(x), y),
            "accuracy": (model(x).argmax(1) == y).float().mean(),
        }

    def by_weight(x, y, w):
        loss = cross_entropy(model(x), y, reduction="none")
        return {"loss": (loss * w).sum() / w.sum()}, w.sum()

    results = []
    for _ in trainer.epochs(3):
        for batch in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), *batch)
        found = trainer.evaluate(by_sample, held_out), trainer.evaluate(by_weight, held_out)
        training = model.training
        model.eval()
        with torch.no_grad():
            expected = by_sample(x, y, weights), by_weight(x, y, weights)[0]
        model.train()
        expected = [{name: float(mean) for name, mean in means.items()} for means in expected]
        results.append({"found": found, "expected": expected, "training": training})
    return results


init()
report(
    {
        "running_statistics": running_statistics(),
        "evaluation": evaluation(),
    }
)
