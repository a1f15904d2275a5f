"""Trains by plans that ask the workers to measure themselves first; tells what came of it."""

from __future__ import annotations

import logging
import random
import time

import msgspec
import numpy as np
import torch
from scripted import ScriptedPlanner, arguments, report
from torch import nn

import hetero_hvd
from hetero_hvd.worker import calibration
from hetero_hvd.worker.session.worker_context import init


class AskingPlanner(ScriptedPlanner):
    """Asks for so many measurements before the first step, with other shares after each."""

    def __init__(self, shares, ratios):
        super().__init__(shares)
        self.ratios = list(ratios)
        self.answers = []

    def joined(self, event):
        """The first shares, to be measured if any are."""
        return self._asking(super().joined(event))

    def calibrated(self, event):
        """The next shares."""
        self.answers.append(event.measured)
        number = len(self.answers)
        plan = msgspec.structs.replace(
            self.plan, plan_id=1 + number, local_batch_sizes=self.shares[number]
        )
        return self._asking(plan)

    def timed(self, event):
        """The shares stay."""

    def _asking(self, plan):
        ratio = self.ratios.pop(0) if self.ratios else 0.0
        self.plan = msgspec.structs.replace(plan, calibration_ratio=ratio)
        return self.plan


class Run:
    """A script in one of several ways to take its steps."""

    def __init__(self, given):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the one that scripts use
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3)
        )
        images, labels = torch.randn(96, 8), torch.randint(3, (96,))
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(images, labels),
            batch_size=24 // given.get("options", {}).get("accumulation_steps", 1),
            shuffle=True,
        )
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.planner = init().planner = AskingPlanner(given["shares"], given["ratios"])
        options = dict(given.get("options", {}))
        if given.get("scales"):
            options["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        self.scaler = options.get("scaler")
        self.trainer = hetero_hvd.Trainer(self.model, optimizer, loader, **options)
        self.head = nn.Linear(8, 3)
        self.take = getattr(self, given["way"])
        self.added = None
        if given["way"] == "two_models":
            head_optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)
            self.added = self.trainer.add_model("head", self.head, head_optimizer)
        self.holds = given.get("holds", 99)
        self.fewest = given.get("fewest", 1)
        self.num_slow = given.get("num_slow", 0)
        self.passes = []

    def loss(self, x, y):
        """Draws random numbers of every kind."""
        self.passes.append(len(y))
        if len(y) > self.holds:
            raise torch.OutOfMemoryError("no room")
        if len(y) < self.fewest:
            raise ValueError(f"{len(y)} samples are too few")
        time.sleep(1.1 * (len(self.passes) <= self.num_slow))
        noise = random.random() + float(np.random.rand())  # noqa: NPY002, S311
        return nn.functional.cross_entropy(self.model(x), y) * (1 + 0.01 * noise)

    def step(self, x, y):
        """As scripts do."""
        self.trainer.step(self.loss, x, y)

    def changed(self, x, y):
        """On something else than what was handed out."""
        self.trainer.step(self.loss, x.clone(), y)

    def own_loop(self, x, y):
        """On the lower level."""
        for micro_batch in self.trainer.micro_batches(x, y):
            self.trainer.backward(self.loss(*micro_batch))
        assert self.trainer.apply()

    def two_models(self, x, y):
        """In one loop."""
        self.added.step(lambda x, y: nn.functional.cross_entropy(self.head(x), y), x, y)
        self.trainer.step(self.loss, x, y)


class Warnings(logging.Handler):
    """What people are told of the measurements."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.words = []

    def emit(self, record):
        """Keep it."""
        self.words.append(record.getMessage())


def train(given):
    """One run."""
    run, told = Run(given), Warnings()
    calibration.logger.addHandler(told)
    sizes, losses = [], []
    for _ in run.trainer.epochs(2):
        for x, y in run.trainer.batches():
            run.take(x, y)
            sizes.append(len(y))
            losses.append(run.trainer.loss)
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002, S311
    answers = run.planner.answers
    calibration.logger.removeHandler(told)
    return {
        "told": told.words,
        "losses": losses,
        "drawn": drawn,
        "sizes": sizes,
        "passes": run.passes,
        "answers": [[[one.num_samples for one in each] for each in a] for a in answers],
        "seconds": [one.seconds for answer in answers for each in answer for one in each],
        "scale": run.scaler.state_dict() if run.scaler else {},
        "state": [float(value.double().sum()) for value in run.model.state_dict().values()],
    }


if __name__ == "__main__":
    report({name: train(given) for name, given in arguments()["runs"].items()})
