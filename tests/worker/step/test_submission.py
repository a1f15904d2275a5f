"""What a step submits at its end is submitted at once: Horovod sums it in one of its cycles."""

from __future__ import annotations

import math

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.probes.kernel.throttling import CpuQuota
from hetero_hvd.worker.comm.horovod import HorovodCollective
from hetero_hvd.worker.reduction.bucket import Bucket
from hetero_hvd.worker.reduction.buffer_average import BufferAverage
from hetero_hvd.worker.step.step_reduction import StepReduction

X = torch.linspace(-1, 1, 24).view(8, 3)
MODES = {
    "synchronous": {},
    "in micro-batches": {"micro_batch_size": 2},
    "late": {"staleness_bound": 1, "staleness_warmup_steps": 0},
    "wait-free": {"wait_free": True, "micro_batch_size": 2},
    "fp16 with error feedback": {"compression": "fp16-feedback"},
}


class Model(nn.Module):
    """Buffers that change, and a parameter that no pass uses: nobody submits it before the end."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(3, 1)
        self.norm = nn.BatchNorm1d(3)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        """A loss."""
        return self.used(self.norm(x)).square().mean()


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_nothing_is_made_ready_after_the_first_sum_of_the_end(options, monkeypatch):
    """From the totals to the last sum of a step there is nothing but the starts of sums."""
    seen = []

    def noting(name, function):
        def noted(*args, **kwargs):
            seen.append(name)
            return function(*args, **kwargs)

        return noted

    monkeypatch.setattr(Bucket, "seal", noting("seal", Bucket.seal))
    monkeypatch.setattr(BufferAverage, "seal", noting("seal", BufferAverage.seal))

    def submit(self, collective, *args, **kwargs):
        begin, start = len(seen), type(collective).sum_async
        with monkeypatch.context() as patch:
            patch.setattr(
                type(collective),
                "sum_async",
                lambda own, tensor, name: (seen.append(name), start(own, tensor, name))[1],
            )
            own_submit(self, collective, *args, **kwargs)
        steps.append(seen[begin:])

    own_submit, steps = StepReduction.submit, []
    monkeypatch.setattr(StepReduction, "submit", submit)

    def work(context):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(X), 4)
        trainer = Trainer(model, optimizer, loader, bucket_bytes=8, **options)
        trainer._state._context = context
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                trainer.step(model, x)

    run_together(Hub(1), work)
    assert steps
    for names in steps:
        first = next(place for place, name in enumerate(names) if name.startswith("totals"))
        assert "seal" in names[:first]
        assert "seal" not in names[first:]
        assert any(name.startswith("gradients") for name in names[first:])


@pytest.mark.parametrize(("cores", "first"), [(math.inf, "gradients"), (0.5, "totals")])
def test_under_a_quota_small_buckets_wait_for_the_end_of_the_step(cores, first, monkeypatch):
    """A cycle of Horovod of their own takes processor time that the worker does not have."""
    names = []
    monkeypatch.setattr(CpuQuota, "cores", lambda _: cores)

    def noted(own, tensor, name, start=HorovodCollective.sum_async):
        names.append(name.split(".")[0])
        return start(own, tensor, name)

    monkeypatch.setattr(HorovodCollective, "sum_async", noted)

    def work(context):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, optimizer, DataLoader(TensorDataset(X), 4), bucket_bytes=8)
        trainer._state._context = context
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                names.clear()
                trainer.step(lambda x: model(x).square().mean(), x)

    run_together(Hub(1), work)
    assert names[0] == first
    assert names.count("totals") == 1
    assert names.count("gradients") > 1
