"""The reduced gradient of random models under random shares, against one process."""

import random

import torch
from scripted import arguments, follow, report
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.worker.session.worker_context import init

IGNORED = -100


def random_model(generator, *, tokens):
    """Random model."""
    width = generator.choice([3, 8, 17])
    if tokens:
        return nn.Sequential(
            nn.Embedding(11, width), nn.Linear(width, 24), nn.Tanh(), nn.Linear(24, 11)
        )
    layers = [nn.Linear(6, width)]
    for _ in range(generator.randint(0, 3)):
        layers += [
            generator.choice([nn.ReLU(), nn.Tanh(), nn.LayerNorm(width)]),
            nn.Linear(width, width),
        ]
    return nn.Sequential(*layers, nn.Linear(width, 5))


def random_shares(generator, total, parts):
    """Random shares."""
    cuts = sorted(generator.randint(0, total) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def token_loss(model):
    """Token loss."""

    def loss(x, y):
        logits = model(x)
        weight = (y != IGNORED).sum()
        return cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED), weight

    return loss


def sample_loss(model):
    """Sample loss."""
    return lambda x, y: cross_entropy(model(x), y)


def one_case(seed, num_workers):
    """One case."""
    generator = random.Random(seed)  # noqa: S311 - a repeatable one
    torch.manual_seed(seed)
    tokens = seed % 2 == 1
    dtype = torch.float64 if seed % 4 >= 2 else torch.float32
    size = generator.randint(max(4, num_workers), 40)
    if tokens:
        x, y = torch.randint(11, (size, 7)), torch.randint(11, (size, 7))
        y[torch.rand(size, 7) < 0.5] = IGNORED
        y[: size // 3] = IGNORED  # whole samples, and so whole shares, without a single valid token
    else:
        x, y = torch.randn(size, 6, dtype=dtype), torch.randint(5, (size,))
    model = random_model(generator, tokens=tokens).to(dtype)
    make_loss = token_loss if tokens else sample_loss
    shares = random_shares(generator, size, num_workers)
    follow([shares])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = hetero_hvd.Trainer(
        model,
        optimizer,
        DataLoader(TensorDataset(x, y), batch_size=size),
        micro_batch_size=generator.choice([None, 1, 3]),
        bucket_bytes=generator.choice([1, 200, 2**20]),
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches():
            trainer.step(make_loss(model), *batch)
    found = torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
    joined = make_loss(model)(x, y)
    joined = joined[0] if tokens else joined
    expected = torch.cat(
        [g.flatten() for g in torch.autograd.grad(joined, list(model.parameters()))]
    )
    error = ((found - expected).norm() / expected.norm()).item()
    return {"seed": seed, "dtype": str(dtype), "shares": shares, "error": error}


num_workers = init().collective.size
report([one_case(seed, num_workers) for seed in range(arguments()["cases"])])
