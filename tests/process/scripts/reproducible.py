"""Trainings of several kinds under several plans; each leaves its fingerprint."""

from hashlib import sha256

import numpy as np
import torch
from scripted import arguments, report
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import hetero_hvd
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.worker.session.plan_source import even_plan
from hetero_hvd.worker.session.worker_context import init
from tests.kit.local_planner import LocalPlanner

SIZE, BATCH, GRAIN, VOCABULARY, LENGTH = 104, 32, 4, 13, 8
"""The last batch of an epoch has 8 samples."""


class Images(Dataset):
    """Small images, shifted and made noisy by all three global generators."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SIZE, 1, 6, 6, generator=generator)
        self.y = torch.randint(5, (SIZE,), generator=generator)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        x = self.x[index] + 0.1 * torch.randn(1, 6, 6) + float(np.random.normal())  # noqa: NPY002
        return x, self.y[index]


class Texts(Dataset):
    """Token sequences of different lengths; what is behind the end is not learnt."""

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.x = torch.randint(VOCABULARY, (SIZE, LENGTH + 1), generator=generator)
        self.lengths = torch.randint(1, LENGTH + 1, (SIZE,), generator=generator)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        target = self.x[index, 1:].clone()
        target[self.lengths[index] :] = -100
        return self.x[index, :-1], target


class Ragged(Texts):
    """The same, without what is behind the end."""

    def __getitem__(self, index):
        x, target = super().__getitem__(index)
        return x[: self.lengths[index]], target[: self.lengths[index]]


def padded(samples):
    """As long as the longest of the batch, some tokens masked at random."""
    x, target = (
        nn.utils.rnn.pad_sequence(list(column), True) for column in zip(*samples, strict=True)
    )
    return x * (torch.rand(x.shape) > 0.2), target.where(x > 0, -100)


def new_cnn():
    """With normalisation over the batch, and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(216, 5),
    )


class Gpt(nn.Module):
    """Two tiny blocks with attention to the past, and dropout."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.places = nn.Embedding(LENGTH, 16)
        block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, x):
        """Logits of each next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


def image_loss(model):
    """Mean over the samples."""
    return lambda x, y: cross_entropy(model(x), y)


def text_loss(model):
    """Mean over the tokens that count, and their number."""

    def loss(x, y):
        logits = model(x)
        return cross_entropy(logits.flatten(0, 1).float(), y.flatten()), (y >= 0).sum()

    return loss


class Plans:
    """Even shares, or others after each exchange."""

    def __init__(self, *, skewed):
        self.skewed = skewed
        self.plan = None
        self.number = 0

    def joined(self, event):
        """Even at the start."""
        self.plan = even_plan(event)
        self.change()
        return self.plan

    def timed(self, event):
        """The next plan is due."""
        del event
        self.change()

    def change(self):
        """Turn a lopsided division around."""
        self.number += 1
        size = len(self.plan.workers)
        sizes = [BATCH // GRAIN // size * GRAIN] * size
        if self.skewed:
            sizes = [0] * size
            sizes[self.number % size] = GRAIN * (1 + self.number % 3)
        sizes[(self.number + 1) % size] += BATCH - sum(sizes)
        values = {"plan_id": self.number, "local_batch_sizes": tuple(sizes)}
        self.plan = type(self.plan)(
            **{name: getattr(self.plan, name) for name in self.plan.__struct_fields__} | values
        )

    def use_grain(self, grain):
        """The divisions are of whole grains anyway."""

    def newest(self):
        """What is due."""
        return self.plan


def planner_of(kind):
    """The planner that a case asks for."""
    if kind == "balancer":
        return LocalPlanner(BalanceConfig(exchange_seconds=1e-3, min_gain_ratio=0.0))
    return Plans(skewed=kind == "skewed")


def new_training(model, options):
    """Network, its loss function, data and trainer."""
    torch.manual_seed(3)
    is_ragged = options.pop("ragged", False)
    texts = Ragged if is_ragged else Texts
    network, data, loss_of = (
        (new_cnn(), Images(), image_loss) if model == "cnn" else (Gpt(), texts(), text_loss)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    collate, loaders = padded if is_ragged else None, options.pop("loaders", 0)
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=loaders, collate_fn=collate)
    trainer = hetero_hvd.Trainer(
        network,
        optimizer,
        loader,
        seed=7,
        clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
        **options,
    )
    return network, loss_of(network), data, trainer


def one_case(*, model, plans, mode=True, autocast=False, scaler=False, oom=False, **options):
    """Train two epochs; `oom`: in step 2 there is no memory for a grain after the first, once."""
    init().planner = planner_of(plans)
    if mode:
        options |= {"reproducible": True, "grain": GRAIN}
    if scaler:  # the first scaled losses are infinite
        options["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    collate = padded if options.get("ragged") else None
    network, loss, data, trainer = new_training(model, options)
    evaluation, shares, calls = {}, set(), []

    def in_context(*batch):
        calls.append(trainer.applied_steps)
        if oom and calls.count(2) == 2:
            torch.empty(2**50)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return 64 * loss(*batch) if scaler else loss(*batch)

    for _ in trainer.epochs(2):
        for batch in trainer.batches():
            shares.add((trainer.applied_steps, len(batch[0])))
            trainer.step(in_context, *batch)
        if model == "gpt":
            evaluation = trainer.evaluate(
                lambda x, y: ({"loss": loss(x, y)[0]}, (y >= 0).sum()),
                DataLoader(data, 10, collate_fn=collate),
            )
    weights = list(network.parameters())
    return {
        "fingerprint": trainer.fingerprint(),
        "weights": sha256(b"".join(p.detach().numpy().tobytes() for p in weights)).hexdigest(),
        "evaluation": evaluation,
        "finite": all(bool(p.isfinite().all()) for p in weights),
        "shares": sorted(shares),
        "calls": calls.count(2),
        "scale": options["scaler"].get_scale() if scaler else None,
    }


report([one_case(**case) for case in arguments()["cases"]])
