"""Each feature of the trainer in one small training, run together and run alone."""

import torch
from alone import Alone, seeded
from scripted import follow, report
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd
from hetero_hvd.worker.session.worker_context import init

SIZE, BATCH = 90, 16
PLANS = {
    1: [[16]],
    2: [[5, 11], [16, 0], [8, 8]],
    3: [[5, 3, 8], [0, 9, 7], [16, 0, 0], [1, 1, 14]],
}


def new_data():
    """New data."""
    with seeded(1):
        return TensorDataset(torch.randn(SIZE, 6), torch.randint(4, (SIZE,)))


def new_loader(**options):
    """New loader."""
    return DataLoader(new_data(), **{"batch_size": BATCH, "shuffle": True} | options)


def new_model():
    """New model."""
    with seeded():
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))


def sgd(model, **options):
    """Sgd."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, **options)


def train(trainer, model, *, epochs=3, loss=None):
    """The loop of most cases."""
    for _ in trainer.epochs(epochs):
        for x, y in trainer.batches():
            trainer.step(loss or (lambda x, y: cross_entropy(model(x), y)), x, y)
    return model


def scheduler_per_epoch(trainer_of):
    """Scheduler per epoch."""
    model = new_model()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return train(trainer_of(model, optimizer, new_loader(), scheduler=scheduler), model)


def scheduler_per_step(trainer_of):
    """Scheduler per step."""
    model = new_model()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=18)
    options = {"scheduler": scheduler, "scheduler_interval": "step"}
    return train(trainer_of(model, optimizer, new_loader(), **options), model)


def scheduler_on_plateau(trainer_of):
    """Scheduler on plateau."""
    model = new_model()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    trainer = trainer_of(model, optimizer, new_loader(), extra_state={"plateau": scheduler})
    for _ in trainer.epochs(4):
        for x, y in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
        found = trainer.evaluate(lambda x, y: {"loss": cross_entropy(model(x), y)}, new_loader())
        scheduler.step(found["loss"])
    assert optimizer.param_groups[0]["lr"] < 0.1
    return model


def clipping(trainer_of):
    """Clipping."""
    model = new_model()
    norms = []
    clip = lambda parameters: norms.append(nn.utils.clip_grad_norm_(parameters, 0.2))  # noqa: E731
    train(trainer_of(model, sgd(model), new_loader(), clip=clip), model)
    assert max(norms) > 0.2
    return model


def accumulation(trainer_of):
    """Accumulation."""
    model = new_model()
    loader = new_loader(batch_size=BATCH // 2)
    return train(trainer_of(model, sgd(model), loader, accumulation_steps=2), model)


def micro_batches(trainer_of):
    """Micro batches."""
    model = new_model()
    return train(trainer_of(model, sgd(model), new_loader(), micro_batch_size=3), model)


def float16(trainer_of):
    """One sample in one step of the second epoch overflows."""
    model, scaler = new_model(), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    trainer = trainer_of(model, sgd(model), new_loader(), scaler=scaler)
    scales, spoiler = [], new_data().tensors[0][7]
    for epoch in trainer.epochs(3):

        def loss(x, y, epoch=epoch):
            with torch.autocast("cpu", torch.float16):
                found = cross_entropy(model(x), y)
            spoilt = epoch == 1 and bool((x == spoiler).all(1).any())
            return found * torch.inf if spoilt else found

        for x, y in trainer.batches():
            trainer.step(loss, x, y)
        scales.append(scaler.get_scale())
    assert scales == [2048.0, 2048.0, 4096.0], scales  # 12 steps of growth by 4, one halving
    return model


def bfloat16(trainer_of):
    """Bfloat16."""
    model = new_model()

    def loss(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(x), y)

    return train(trainer_of(model, sgd(model), new_loader()), model, loss=loss)


def bfloat16_parameters(trainer_of):
    """Bfloat16 parameters."""
    model = new_model().bfloat16()
    loss = lambda x, y: cross_entropy(model(x.bfloat16()).float(), y)  # noqa: E731
    return train(trainer_of(model, sgd(model), new_loader()), model, loss=loss)


def mixed_parameters(trainer_of):
    """Mixed parameters."""
    model = new_model()
    model[2].double()
    loss = lambda x, y: cross_entropy(model[3](model[2](model[:2](x).double()).float()), y)  # noqa: E731
    return train(trainer_of(model, sgd(model), new_loader()), model, loss=loss)


def freezing(trainer_of):
    """Freezing."""
    model = new_model()
    model[0].requires_grad_(False)
    trainer = trainer_of(model, sgd(model), new_loader())
    for epoch in trainer.epochs(4):
        model[0].requires_grad_(epoch in (1, 3))
        model[2].weight.requires_grad_(epoch != 2)
        for x, y in trainer.batches():
            trainer.step(lambda x, y: cross_entropy(model(x), y), x, y)
    return model


def unused_by_some(trainer_of):
    """Only the samples with a positive first feature go through the third layer."""
    model = new_model()

    def loss(x, y):
        hidden = model[:2](x)
        taken = x[:, 0] > 1.0
        if taken.any():
            hidden = hidden.masked_scatter(taken[:, None], model[2](hidden[taken]))
        return cross_entropy(model[3](hidden), y)

    return train(trainer_of(model, sgd(model), new_loader()), model, loss=loss)


def unused_by_all(trainer_of):
    """Neither a gradient nor weight decay reaches the third layer, except in the second epoch."""
    model = new_model()
    trainer = trainer_of(model, sgd(model), new_loader())
    for epoch in trainer.epochs(3):
        for x, y in trainer.batches():
            body = model if epoch == 1 else nn.Sequential(model[0], model[1], model[3])
            trainer.step(lambda x, y, body=body: cross_entropy(body(x), y), x, y)
        assert (model[2].weight.grad is None) == (epoch != 1)
    return model


def tied_weights(trainer_of):
    """Tied weights."""
    with seeded():
        model = nn.Sequential(nn.Linear(6, 8), nn.Embedding(4, 8))
    model.append(nn.Linear(8, 4, bias=False))
    model[2].weight = model[1].weight
    loss = lambda x, y: cross_entropy(model[2](model[0](x) + model[1](y * 0)), y)  # noqa: E731
    return train(trainer_of(model, sgd(model), new_loader()), model, loss=loss)


def dict_batches(trainer_of):
    """Dict batches."""
    model = new_model()
    collate = lambda samples: {  # noqa: E731
        "x": torch.stack([x for x, _ in samples]),
        "labels": [int(y) for _, y in samples],
    }
    loss = lambda batch: cross_entropy(model(batch["x"]), torch.tensor(batch["labels"]))  # noqa: E731
    trainer = trainer_of(model, sgd(model), new_loader(collate_fn=collate), micro_batch_size=4)
    for _ in trainer.epochs(3):
        for batch in trainer.batches():
            trainer.step(loss, batch)
    return model


def lower_level(trainer_of):
    """Lower level."""
    model = new_model()
    trainer = trainer_of(model, sgd(model), new_loader(), micro_batch_size=4)
    if trainer_of is Alone:
        return train(trainer, model)
    for _ in trainer.epochs(3):
        for batch in trainer.batches():
            for x, y in trainer.micro_batches(*batch):
                trainer.backward(cross_entropy(model(x), y))
            assert trainer.apply()
    return model


def sync_batch_norm(trainer_of):
    """One whole micro-batch for each worker that has samples: the statistics are the batch's."""
    with seeded():
        first = (nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh())
        second = (nn.Linear(16, 16), nn.BatchNorm1d(16, affine=False), nn.Linear(16, 4))
        model = nn.Sequential(*first, *second)
    if trainer_of is not Alone:
        hetero_hvd.convert_sync_batch_norm(model)
    train(trainer_of(model, sgd(model), new_loader()), model)
    statistics = torch.cat([b.double().flatten() for b in model.buffers()])
    model.register_parameter("statistics", nn.Parameter(statistics))
    return model


CASES = [
    scheduler_per_epoch, scheduler_per_step, scheduler_on_plateau, clipping, accumulation,
    micro_batches, float16, bfloat16, bfloat16_parameters, mixed_parameters, freezing,
    unused_by_some, unused_by_all, tied_weights, dict_batches, lower_level,
    sync_batch_norm,
]  # fmt: skip


def error_of(case):
    """Largest difference in any parameter; that all workers agree, the trainer proves itself."""
    follow(PLANS[init().collective.size])
    together, alone = (
        nn.utils.parameters_to_vector([p.double() for p in case(kind).parameters()])
        for kind in (hetero_hvd.Trainer, Alone)
    )
    return (together - alone).abs().max().item()


init()
report({case.__name__: error_of(case) for case in CASES})
