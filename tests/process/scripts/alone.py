"""One process in plain PyTorch behind the trainer's interface: what the trainer must equal."""

from __future__ import annotations

import contextlib

import torch

from hetero_hvd.core.data.shards import permutation


class Alone:
    """The training loop as everybody writes it, on whole batches in the trainer's data order."""

    def __init__(
        self,
        model,
        optimizer,
        loader,
        *,
        scheduler=None,
        scheduler_interval="epoch",
        scaler=None,
        clip=None,
        accumulation_steps=1,
        extra_state=None,
        micro_batch_size=None,
    ):
        del extra_state, micro_batch_size
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.scheduler = scheduler
        self.interval = scheduler_interval
        self.scaler = scaler
        self.clip = clip
        self.accumulation_steps = accumulation_steps

    def epochs(self, num_epochs):
        """As in the trainer."""
        for self.epoch in range(num_epochs):
            yield self.epoch
            if self.scheduler is not None and self.interval == "epoch":
                self.scheduler.step()

    def batches(self):
        """As in the trainer."""
        dataset, size = self.loader.dataset, self.loader.batch_size * self.accumulation_steps
        order = permutation(len(dataset), seed=0, epoch=self.epoch).tolist()
        for start in range(0, len(order), size):
            samples = [dataset[index] for index in order[start : start + size]]
            yield self.loader.collate_fn(samples)

    def step(self, loss_function, *batch):
        """As in the trainer."""
        self.optimizer.zero_grad()
        loss = loss_function(*batch)
        loss = loss[0] if isinstance(loss, tuple) else loss
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.clip:
            self.clip([p for p in self.model.parameters() if p.grad is not None])
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler is not None and self.interval == "step":
            self.scheduler.step()
        return loss.item()

    def evaluate(self, metrics, loader):
        """As in the trainer, for means over samples."""
        samples = [loader.dataset[index] for index in range(len(loader.dataset))]
        self.model.eval()
        with torch.no_grad():
            found = metrics(*loader.collate_fn(samples))
        self.model.train()
        means = found[0] if isinstance(found, tuple) else found
        return {name: float(mean) for name, mean in means.items()}


@contextlib.contextmanager
def seeded(seed=3):
    """The same random numbers whenever it is entered."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
