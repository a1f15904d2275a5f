"""Models that register or change something, and what scripts do to a model between two epochs."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune


class Keeper(nn.Module):
    """A linear model with a buffer that each forward pass may change; `keep` says how."""

    def __init__(self, buffer, *, is_persistent=True):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("kept", buffer, persistent=is_persistent)

    def forward(self, x):
        """As the linear layer."""
        if self.training:
            self.keep(x.detach())
        return self.linear(x)

    def keep(self, x):
        """Nothing by default: a constant."""


class Masked(Keeper):
    """Attention over the three features, of which none sees those behind it."""

    def __init__(self):
        super().__init__(torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, x):
        """The features, mixed."""
        scores = x[:, :, None] * x[:, None, :] + self.kept
        return self.linear((scores.softmax(-1) @ x[:, :, None])[..., 0])


class Constant(Keeper):
    """Constants of all kinds."""

    def __init__(self):
        super().__init__(torch.tensor([torch.nan, 1.0]))
        self.register_buffer("pairs", torch.tensor([1j, 1.0 + torch.inf]))
        self.register_buffer("low", torch.tensor([0.5, -torch.inf], dtype=torch.float16))
        self.register_buffer("numbers", torch.tensor([2**62 + 1, -1]))
        self.register_buffer("marks", torch.ones(3, 3).tril() > 0)
        self.register_buffer("missing", None)
        self.register_buffer("wide", torch.ones(1).expand(3))


class Replaced(Keeper):
    """An average that the forward pass replaces."""

    def keep(self, x):
        """Linear in the batch's mean."""
        self.kept = 0.9 * self.kept + 0.1 * x.mean(0)


class Changed(Keeper):
    """The same, in place."""

    def keep(self, x):
        """Linear in the batch's mean."""
        self.kept.mul_(0.9).add_(0.1 * x.mean(0))


class Counting(Keeper):
    """Counts its calls."""

    def keep(self, _):
        """One more."""
        self.kept += 1


class Started(Keeper):
    """Knows whether it was ever called."""

    def keep(self, _):
        """It was."""
        self.kept.fill_(1)


class Lowest(Keeper):
    """The smallest of each feature so far, as observers of quantisation keep it."""

    def keep(self, x):
        """From infinity down."""
        self.kept.copy_(torch.minimum(self.kept, x.amin(0)))


class Seldom(Keeper):
    """Changes only where one certain sample is."""

    def keep(self, x):
        """The sample with the largest values."""
        if bool((x > 0.95).any()):
            self.kept += 1.0


class Cached(Keeper):
    """Keeps something as long as the batch, and builds it again for another."""

    def keep(self, x):
        """Of the batch's size."""
        if len(self.kept) != len(x):
            self.kept = torch.arange(float(len(x)))


class Empty(Keeper):
    """A buffer and a parameter without elements."""

    def __init__(self):
        super().__init__(torch.zeros(0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        """Uses the parameter."""
        return super().forward(x) + self.nothing.sum()


def seen(buffer, kind=Keeper, **options):
    """A maker of such a model."""
    return lambda: kind(buffer.clone(), **options)


def spectral():
    """Buffers of a parametrization."""
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 2)))


def normed():
    """Running statistics; two values for each channel and sample."""
    norm = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.BatchNorm1d(2), nn.Flatten())
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))


BUFFERS = {
    "-inf": Masked,
    "constants": Constant,
    "changed": seen(torch.zeros(3), Changed),
    "changed in float64": seen(torch.zeros(3, dtype=torch.float64), Changed),
    "replaced": seen(torch.zeros(3), Replaced),
    "fleeting": seen(torch.zeros(3), Replaced, is_persistent=False),
    "cache": seen(torch.zeros(0), Cached, is_persistent=False),
    "count": seen(torch.tensor(0.0), Counting),
    "empty": Empty,
    "spectral norm": spectral,
    # What follows depends on the division, or is refused in the reproducible mode.
    "long count": seen(torch.tensor(2**40), Counting),
    "flag": seen(torch.tensor(False), Started),
    "lowest": seen(torch.full((3,), torch.inf), Lowest),
    "seldom": seen(torch.tensor(0.0), Seldom),
    "batch norm": normed,
}
"""Name to a maker of a model."""

DIVISION_MATTERS = {"lowest", "seldom", "batch norm", "fleeting", "cache"}
"""Not as in one process with the whole batch, though equal on all workers if it is kept at all."""

REFUSED_IF_REPRODUCIBLE = {
    "fleeting": "the buffer kept, which is no persistent statistic",
    "long count": "changes the buffer kept",
    "flag": "changes the buffer kept",
    "lowest": "buffer kept holds infinities or NaN",
}


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Linear(3, 1, bias=False)
        self.up = nn.Linear(1, 4, bias=False)
        with torch.no_grad():
            for part in (self.down, self.up):
                part.weight.fill_(0.5)

    def forward(self, x):
        """The layer, and what the adapter adds."""
        return self.layer(x) + self.up(self.down(x))


def filled(module):
    """The same parameters on every worker."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    return module


def append(model, optimizer):
    """A layer more."""
    model.append(filled(nn.Linear(2, 2)))
    optimizer.add_param_group({"params": model[-1].parameters()})


def append_forgotten(model, optimizer):  # noqa: ARG001
    """A layer more, of which the optimizer does not know."""
    model.append(filled(nn.Linear(2, 2)))


def remove(model, optimizer):  # noqa: ARG001
    """A layer less; an optimizer has no way to forget its parameters."""
    del model[2]


def replace(model, optimizer):
    """Another last layer, of another width."""
    model[3] = filled(nn.Linear(4, 3))
    optimizer.add_param_group({"params": model[3].parameters()})


def widen(model, optimizer):
    """The same parameters with more elements, as a growing vocabulary has."""
    last = model[3]
    last.weight.data = torch.cat([last.weight.data, torch.full((1, 4), 0.1)])
    last.bias.data = torch.zeros(len(last.weight))
    for parameter in last.parameters():
        optimizer.state.pop(parameter, None)


def freeze(model, optimizer):  # noqa: ARG001
    """The first layer stays."""
    model[0].requires_grad_(requires_grad=False)


def adapt(model, optimizer):
    """An adapter of low rank."""
    model[0] = Adapted(model[0])
    parameters = [*model[0].down.parameters(), *model[0].up.parameters()]
    optimizer.add_param_group({"params": parameters})


def cut(model, optimizer):  # noqa: ARG001
    """Half of the weights become zero and stay so."""
    prune.l1_unstructured(model[0], "weight", 0.5)


def weight_norm(model, optimizer):
    """Other parameters in the place of a weight."""
    parametrizations.weight_norm(model[0])
    optimizer.add_param_group({"params": model[0].parametrizations.weight.parameters()})


def spectral_norm(model, optimizer):  # noqa: ARG001
    """The same parameter under another name, and buffers."""
    parametrizations.spectral_norm(model[0])
    for buffer in model[0].buffers():
        buffer.fill_(1 / len(buffer) ** 0.5)


def plain(model, optimizer):  # noqa: ARG001
    """A parametrization of an earlier epoch is taken away again."""
    if parametrize.is_parametrized(model[0]):
        parametrize.remove_parametrizations(model[0], "weight")


def tie(model, optimizer):  # noqa: ARG001
    """Two layers share one weight."""
    model[2].weight = model[1].weight


def add_buffer(model, optimizer):  # noqa: ARG001
    """A mask more."""
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))


def add_nothing(model, optimizer):
    """A parameter without elements."""
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
    optimizer.add_param_group({"params": [model.nothing]})


def thaw(model, optimizer):  # noqa: ARG001
    """All is trained."""
    model.requires_grad_(requires_grad=True)


def nothing(model, optimizer):
    """No change."""


EDITS = {
    edit.__name__: (edit, then)
    for edit, then in (
        (append, nothing),
        (append_forgotten, append),
        (remove, append),
        (replace, widen),
        (widen, freeze),
        (freeze, thaw),
        (adapt, thaw),
        (cut, freeze),
        (weight_norm, append),
        (spectral_norm, plain),
        (tie, append),
        (add_buffer, add_nothing),
        (add_nothing, replace),
    )
}
"""Name to what a script does after the first and after the second epoch."""


def layers():
    """What the edits are made to."""
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))


def made(maker):
    """The same model each time."""
    torch.manual_seed(0)
    return maker()


def state_of(model):
    """All that a model has registered, by name; copies."""
    return copy.deepcopy({**dict(model.named_parameters()), **dict(model.named_buffers())})
