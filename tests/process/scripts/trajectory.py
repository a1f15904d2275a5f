"""Whole trainings under plans that change all the time, against one process in plain torch."""

import torch
from scripted import arguments, follow, report
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import hetero_hvd
from hetero_hvd.core.data.shards import permutation
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.session.worker_context import init

SIZE, BATCH, SEED = 210, 32, 5
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=1e-2),
}


class Numbered(Dataset):
    """Samples that know their number, so that a batch tells which ones it holds."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SIZE, 6, generator=generator)
        self.y = torch.randint(4, (SIZE,), generator=generator)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index, self.x[index], self.y[index]


def new_model():
    """New model."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def train_alone(data, make_optimizer, epochs, drop_last, bound):
    """Train alone; gradient k is applied after step k + bound was computed."""
    model = new_model()
    optimizer = make_optimizer(model.parameters())
    end = SIZE - SIZE % BATCH if drop_last else SIZE
    under_way = []

    def apply_oldest():
        for parameter, gradient in zip(model.parameters(), under_way.pop(0), strict=True):
            parameter.grad = gradient
        optimizer.step()

    for epoch in range(epochs):
        order = permutation(SIZE, seed=SEED, epoch=epoch)
        for start in range(0, end, BATCH):
            mine = order[start : min(start + BATCH, end)]
            loss = cross_entropy(model(data.x[mine]), data.y[mine])
            under_way.append(torch.autograd.grad(loss, list(model.parameters())))
            if len(under_way) > bound:
                apply_oldest()
        while under_way:
            apply_oldest()
    return nn.utils.parameters_to_vector(model.parameters())


def plans(num_workers):
    """Even, lopsided, and with workers that get nothing; all change places."""
    weights = [
        [1] * num_workers,
        [0] * (num_workers - 1) + [1],
        list(range(num_workers)),
        [5, *[1] * 9],
    ]
    for turn in range(1, 8):
        raw = weights[turn % 4][:num_workers]
        raw = raw[turn % num_workers :] + raw[: turn % num_workers]
        shares = [BATCH * part // max(1, sum(raw)) for part in raw]
        shares[turn % num_workers] += BATCH - sum(shares)
        yield shares


def one_case(*, optimizer, epochs, drop_last=False, workers=(0,), persistent=False, bound=0):
    """One case."""
    context, data = init(), Numbered()
    planner = follow(plans(context.collective.size))
    num_loaders = workers[context.collective.rank % len(workers)]
    loader = DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True,
        drop_last=drop_last,
        num_workers=num_loaders,
        persistent_workers=persistent and num_loaders > 0,
    )
    model = new_model()
    kept = OPTIMIZERS[optimizer](model.parameters())
    late = {"staleness_bound": bound, "staleness_warmup_steps": 0, "lookahead": False}
    trainer = hetero_hvd.Trainer(model, kept, loader, seed=SEED, **late)
    consumed = []
    for _ in trainer.epochs(epochs):
        for index, x, y in trainer.batches():
            step = trainer.applied_steps + trainer._pipeline.num_in_flight
            consumed.append([step, index.tolist()])
            trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
    alone = train_alone(data, OPTIMIZERS[optimizer], epochs, drop_last, bound)
    together = nn.utils.parameters_to_vector(model.parameters())
    return {
        "error": (together - alone).abs().max().item(),
        "applied": trainer.applied_steps,
        "checksum": Replica({"model": model, "optimizer": kept}).checksum(),
        "consumed": consumed,
        "plans": planner.plan.plan_id if planner.plan else 0,
    }


init()
report([one_case(**case) for case in arguments()["cases"]])
