"""Trial updates leave no trace in whatever an optimizer keeps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer

X = torch.linspace(-1, 1, 96).view(32, 3)


class GroupCounting(torch.optim.SGD):
    """Counts its steps in the group, and goes slower with each."""

    def step(self, closure=None):
        """Count, and divide the rate by the count."""
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] = 0.2 / group["k"] ** 0.5
        return super().step(closure)


class TensorCounting(torch.optim.SGD):
    """The same with tensors: one is changed in place, one is replaced."""

    def step(self, closure=None):
        """Count twice."""
        for group in self.param_groups:
            group.setdefault("k", torch.zeros(())).add_(1)
            group["weight_sum"] = group.get("weight_sum", torch.zeros(())) + group["lr"]
            group["lr"] = float(0.2 / (group["k"] * (1 + group["weight_sum"])) ** 0.5)
        return super().step(closure)


class OwnCounting(torch.optim.SGD):
    """Counts in an attribute, and in a state that is no parameter's."""

    num_steps = 0

    def step(self, closure=None):
        """Count."""
        self.num_steps = self.num_steps + 1
        self.state["all"] = self.state.get("all", 0) + 1
        for group in self.param_groups:
            group["lr"] = 0.2 / (self.num_steps * self.state["all"]) ** 0.5
        return super().step(closure)


class ScheduleFree(torch.optim.Optimizer):
    """Averages in the place of a schedule (Defazio et al., The Road Less Scheduled, 2024)."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "k": 0, "weight_sum": 0.0, "r": [0.0]})

    @torch.no_grad()
    def step(self, closure=None):
        """One step of its base, and the average of all."""
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["k"] * group["lr"] ** 2
            group["r"][0] += 1.0
            share = group["k"] * group["lr"] ** 2 / group["weight_sum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                base = self.state[parameter].setdefault("z", parameter.detach().clone())
                base -= group["lr"] * parameter.grad
                parameter.lerp_(base, share)
        return closure and closure()


OPTIMIZERS = {
    "in the group": lambda p: GroupCounting(p, lr=0.2, momentum=0.9),
    "tensors in the group": lambda p: TensorCounting(p, lr=0.2, momentum=0.9),
    "in the optimizer": lambda p: OwnCounting(p, lr=0.2, momentum=0.9),
    "schedule-free": ScheduleFree,
    "adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
}


def trained(make_optimizer, **options):
    """Parameters and optimizer state after some epochs alone; calls of the optimizer's hooks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make_optimizer(model.parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    trainer = Trainer(model, optimizer, DataLoader(TensorDataset(X), 4), **options)
    for _ in trainer.epochs(2):
        for (mine,) in trainer.batches():
            trainer.step(lambda x: (model(x) - x[:, :1]).square().mean(), mine)
    state = copy.deepcopy(optimizer.state_dict())
    return nn.utils.parameters_to_vector(model.parameters()).tolist(), state, calls


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trial_updates_leave_no_trace(name):
    """Wherever an optimizer counts: alone, looking ahead is training without staleness."""
    plain, state, calls = trained(OPTIMIZERS[name])
    late = {"staleness_bound": 2, "staleness_warmup_steps": 2}
    ahead, state_ahead, calls_ahead = trained(OPTIMIZERS[name], **late)
    assert ahead == plain
    assert str(state_ahead) == str(state)
    assert calls_ahead == calls
    assert calls.count("after") in (
        16,
        32,
    )  # torch calls them twice where `step` calls its parent's
