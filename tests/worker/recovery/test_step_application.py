"""What workers tell each other while a step is applied: those who remain hear the same."""

from __future__ import annotations

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.integrations.steps import Steps
from hetero_hvd.worker.recovery.replica import Replica

STEPS, BATCH, ASKED = 4, 6, 3
SIZE, BALLAST = STEPS * BATCH, 2000


class Script:
    """Counts how often each sample was used, and notes what the workers tell each other."""

    def __init__(self, context, shards):
        self.rank = context.settings.worker.slot
        self.counts = nn.Parameter(torch.zeros(SIZE))
        self.model = nn.ParameterList([self.counts, nn.Parameter(torch.zeros(BALLAST))])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.heard = {}
        self.evaluated = []
        self.loader = DataLoader(TensorDataset(torch.arange(SIZE)), BATCH)
        self.steps = Steps(
            self.model,
            self.optimizer,
            self.loader,
            after_step=self.after_step,
            shard_optimizer=shards,
        )
        self.steps._state._context = context

    def after_step(self):
        """Tell all others some things, and evaluate in between."""
        for number in range(ASKED):
            place = self.steps.applied_steps, number
            told = f"{self.rank} {place}".encode()
            self.heard[place] = self.steps.gather(told, f"heard.{number}")
            if number == 1:
                found = self.steps.evaluate(
                    lambda index: {"mean": index.double().mean()}, self.loader
                )
                self.evaluated.append(found["mean"])

    def run(self):
        """An epoch."""
        for _ in self.steps.epochs(1):
            for (index,) in self.steps.batches():
                self.steps.step(self.loss, index)
        return self

    def loss(self, index):
        """One for each sample; what is beside it has a gradient of nothing."""
        return -BATCH * self.counts[index].mean() + 0 * self.model[1].sum()


FAULTS = {
    **{
        f"{way}, {name}": [(1, name, 2, way)]
        for name in ("heard.0", "heard.1", "heard.2")
        for way in ("unsent", "sent", "before", "after")
    },
    "nobody": [],
    "in the evaluation between": [(1, "metrics", 2, "before")],
    "lost in the evaluation between": [(1, "metrics", 2, "unsent")],
    "the leader": [(0, "heard.1", 3, "sent")],
    "in the last step": [(2, "heard.1", STEPS, "before")],
    "in the reduction": [(1, "totals.0", 2, "before")],
    "again where it is told again": [(1, "heard.1", 2, "before"), (2, "told", 1, "before")],
    "lost where it is told again": [(1, "heard.1", 2, "before"), (2, "told", 1, "unsent")],
    "again where all say where they are": [(1, "heard.1", 2, "after"), (0, "reports", 2, "after")],
    "one after the other": [(1, "heard.0", 2, "unsent"), (2, "heard.2", 3, "unsent")],
}


IN_UPDATE = {
    **{
        f"in the update of parts, {way}": [(1, "shards.parameters.0", 2, way)]
        for way in ("unsent", "sent", "before", "after")
    },
    "again while an update is told": [
        (1, "shards.parameters.0", 2, "after"),
        (0, "told", 1, "before"),
    ],
}
"""Where some are in the midst of an update, others may be told something behind it already."""

IN_SHORT = {"before, heard.1", "lost where it is told again", "the leader"}
"""Places of a state in parts, or that may be so, that are tried each time."""

CASES = [
    pytest.param(
        shards,
        faults,
        marks=() if not shards or name in IN_SHORT | IN_UPDATE.keys() else pytest.mark.matrix,
        id=f"{name}, shard_optimizer={shards}",
    )
    for shards, places in ((False, FAULTS), ("auto", FAULTS), (True, FAULTS | IN_UPDATE))
    for name, faults in places.items()
]


@pytest.mark.parametrize(("shards", "faults"), CASES)
def test_those_who_remain_hear_the_same(shards, faults):
    """Each of those who apply the step, once; and each sample is used once, whoever is lost."""
    hub = Hub(3, faults)
    scripts = run_together(hub, lambda context: Script(context, shards).run())
    assert hub.fired == hub.faults
    lost = {fault[0] for fault in faults if fault[-1] in ("sent", "unsent")}
    assert {script.rank for script in scripts} == {0, 1, 2} - lost
    for script in scripts:
        assert script.counts.tolist() == pytest.approx([1.0] * SIZE)
        assert script.evaluated == pytest.approx([(SIZE - 1) / 2] * len(script.evaluated))
        for place, heard in script.heard.items():
            assert f"{script.rank} {place}".encode() in heard
            for other in scripts:
                assert other.heard.get(place, heard) == heard
    assert len({Replica({"model": script.model}).checksum() for script in scripts}) == 1
    if not lost and not {fault[1] for fault in faults} & {"totals.0", "shards.parameters.0"}:
        assert all(len(heard) == 3 for heard in scripts[0].heard.values())
    assert max(len(script.heard) for script in scripts) == STEPS * ASKED
