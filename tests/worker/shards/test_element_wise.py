"""An optimizer is cut where the probe proves that it updates each element by itself, only there."""

from __future__ import annotations

import pytest
import torch

from hetero_hvd.core.shards.cut import Span
from hetero_hvd.errors import UserError
from hetero_hvd.worker.shards.element_wise import prove_element_wise
from hetero_hvd.worker.shards.slices import Layout, Slices

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
BY_ELEMENT = {
    "ASGD": 1,
    "Adadelta": 2,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "NAdam": 2,
    "RAdam": 2,
    "RMSprop": 1,
    "Rprop": 2,
    "SGD": 0,
}
"""Name to its numbers for each element."""

OTHERS = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
OPTIONS = (
    {},
    {"weight_decay": 0.01},
    {"amsgrad": True},
    {"fused": True},
    {"foreach": True},
    {"momentum": 0.9},
)


def made(name, dtype, options):
    """The optimizer on one matrix; None where it has no such option."""
    weight = torch.nn.Parameter(torch.randn(8, 8).to(dtype))
    try:
        return getattr(torch.optim, name)([weight], lr=0.01, **options)
    except (TypeError, ValueError, RuntimeError):
        return None


@pytest.mark.parametrize("name", [*BY_ELEMENT, *OTHERS])
def test_each_of_torchs_optimizers_is_cut_or_refused_by_name(name):
    """With every option and precision that it has."""
    num_found = 0
    for dtype in DTYPES:
        for options in OPTIONS:
            if (optimizer := made(name, dtype, options)) is None:
                continue
            num_found += 1
            before = repr(optimizer.state_dict())
            if name in OTHERS:
                with pytest.raises(UserError, match=f"shard_optimizer: {name} "):
                    prove_element_wise(optimizer)
            else:
                numbers = BY_ELEMENT[name] + ("amsgrad" in options)
                numbers += name == "SGD" and "momentum" in options
                numbers += name == "RMSprop" and "momentum" in options
                assert prove_element_wise(optimizer).num_bytes == numbers * dtype.itemsize
            assert repr(optimizer.state_dict()) == before
    assert num_found >= len(DTYPES)


class ByNorm(torch.optim.SGD):
    """Each tensor's step is as long as its norm says, as in LARS and LAMB."""

    def step(self):
        """Scale, then step."""
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.grad = each.grad * each.detach().norm()
        super().step()


class Counting(torch.optim.SGD):
    """It keeps a number of its own."""

    num_steps = 0

    def step(self):
        """Count, too."""
        self.num_steps += 1
        super().step()


class CountingInGroups(torch.optim.SGD):
    """It counts its steps where a scheduler sets the learning rate."""

    def step(self):
        """Count, too."""
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        super().step()


class BySign(torch.optim.Optimizer):
    """A script's own, by elements: Lion."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        """Chen et al., Symbolic Discovery of Optimization Algorithms, 2023."""
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    kept = self.state[each].setdefault("m", torch.zeros_like(each))
                    each.sub_((kept * 0.9 + each.grad * 0.1).sign_() * group["lr"])
                    kept.lerp_(each.grad, 0.01)


class CentralInConvolutions(torch.optim.SGD):
    """It takes the mean out of the gradients of convolutions, and of nothing else."""

    def step(self):
        """Centralise, then step."""
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None and each.dim() > 3:
                    each.grad = each.grad - each.grad.mean()
        super().step()


class Around(torch.optim.Optimizer):
    """It steps another one, as wrappers do."""

    def __init__(self, params, within=lambda inner: inner):
        inner = torch.optim.SGD(params, lr=0.1)
        super().__init__(inner.param_groups, {})
        self.inner = within(inner)

    def step(self):
        """Of the other one."""


class Remembering(torch.optim.SGD):
    """It keeps its last gradients in a list."""

    def step(self):
        """Keep, then step."""
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each].setdefault("last", []).append(each.grad)
        super().step()


class MastersBeside(torch.optim.SGD):
    """It updates copies that it keeps in a dict of its own, and the model's parameters by them."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.masters = {each: each.detach().clone() for each in params}

    @torch.no_grad()
    def step(self):
        """Of the parameters that it was made with."""
        for each, master in self.masters.items():
            if each.grad is not None:
                each.copy_(master.sub_(each.grad * self.param_groups[0]["lr"]))


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0), 1e-12, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_learning_rate_of_nothing_proves_as_much(lr, dtype):
    """A schedule may begin with it; the script's own stays."""
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.randn(4, 5).to(dtype))], lr=lr)
    assert prove_element_wise(optimizer).names == {"exp_avg", "exp_avg_sq"}
    assert optimizer.param_groups[0]["lr"] is lr


ROUND = (4, 5)
OWN = {
    "by norm": (ByNorm, ROUND, "ByNorm does not update each element by itself"),
    "with a count": (Counting, ROUND, "Counting keeps something beside its parameters' states"),
    "with a count in its groups": (
        CountingInGroups,
        ROUND,
        "CountingInGroups keeps something beside its parameters' states",
    ),
    "with a list": (Remembering, ROUND, "Remembering has a state of other things than tensors"),
    "masters beside it": (
        lambda p: MastersBeside(p, lr=0.0),
        ROUND,
        "MastersBeside keeps something beside its parameters' states",
    ),
    "around another": (Around, ROUND, "Around has a SGD as its inner"),
    "around several": (
        lambda p: Around(p, within=lambda inner: [inner]),
        ROUND,
        "Around has a SGD as its inner",
    ),
    "by dimensions": (CentralInConvolutions, (2, 3, 4, 5), "does not update each element"),
    "by more dimensions": (CentralInConvolutions, (1, 2, 3, 4, 5), "does not update each element"),
    "by dimensions that there are not": (CentralInConvolutions, ROUND, None),
    "by sign": (BySign, ROUND, None),
}


@pytest.mark.parametrize(("make", "shape", "why"), OWN.values(), ids=OWN)
def test_a_scripts_own_optimizer_is_proven_like_any_other(make, shape, why):
    """What it does decides, not its name."""
    optimizer = make([torch.nn.Parameter(torch.randn(shape))])
    if why is None:
        dtypes = {("m", torch.float32): torch.float32} if make is BySign else {}
        assert prove_element_wise(optimizer) == (4 * len(dtypes), dtypes, frozenset(), False)
    else:
        with pytest.raises(UserError, match=why):
            prove_element_wise(optimizer)


def test_each_precision_of_a_group_is_tried():
    """The room that the state takes is that of the widest."""
    narrow, wide = (torch.nn.Parameter(torch.randn(4, 5).to(d)) for d in DTYPES[1::-1])
    single = torch.nn.Parameter(torch.ones((), dtype=narrow.dtype))
    for group in ([narrow, wide], [wide, narrow], [single, narrow]):
        most = max(each.element_size() for each in group)
        assert prove_element_wise(torch.optim.Adam(group)).num_bytes == 2 * most
        prove_element_wise(torch.optim.Adagrad(group))  # which begins its state with itself


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("SGD", torch.bfloat16), ("SGD", torch.float32), ("AdamW", torch.bfloat16)],
)
def test_however_it_is_cut_the_bits_are_those_of_one_thread(name, dtype):
    """Of many elements, which several threads would share."""
    num_threads = 3
    torch.manual_seed(0)
    size = 2**17 + 333
    values = (torch.randn(size) * torch.logspace(-3, 1, size)).to(dtype)
    options = {"momentum": 0.9} if name == "SGD" else {}
    before = torch.get_num_threads()
    found = []
    for cuts in ([], [0, 512], [0, 37, 300, 512], [0, 100, 512]):
        parameter = torch.nn.Parameter(values.clone())
        optimizer = getattr(torch.optim, name)([parameter], lr=0.01, **options)
        proven = prove_element_wise(optimizer)
        layout = Layout(optimizer)
        slices = Slices(optimizer, layout, proven)
        for span in map(Span, cuts, [*cuts[1:], layout.num_blocks]):
            slices.take(*layout.pieces(span), {})
        torch.set_num_threads(num_threads if cuts else 1)
        try:
            for step in range(3):
                parameter.grad = values.roll(step + 1)
                slices.step() if cuts else optimizer.step()
            assert torch.get_num_threads() == (num_threads if cuts else 1)
        finally:
            torch.set_num_threads(before)
        found.append(parameter.detach())
    assert all(torch.equal(each, found[0]) for each in found)
    assert proven.is_serial == (name == "SGD" and dtype.itemsize < 4)


SHAPES = {"scalar": (), "one": (1,), "vector": (7,), "five": (1, 2, 1, 2, 3)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ["AdamW", "Adagrad", "NAdam", "ASGD"])
def test_a_state_that_was_loaded_changes_nothing(name, shape):
    """Of a group with one shape alone, of which a state may not show what is by elements."""
    weight = torch.nn.Parameter(torch.ones(shape))
    make = getattr(torch.optim, name)
    plain = make([weight])
    wanted = prove_element_wise(plain)
    weight.grad = torch.ones(shape)
    plain.step()
    loaded = make([weight])
    loaded.load_state_dict(plain.state_dict())
    assert prove_element_wise(loaded) == wanted
    assert wanted.names == prove_element_wise(make([torch.nn.Parameter(torch.ones(4, 5))])).names


WRONG = {
    "not contiguous": lambda: [torch.nn.Parameter(torch.randn(4, 5).t())],
    "of a real floating-point type": lambda: [
        torch.nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    ],
    "or not of a real": lambda: [torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))],
    "a parameter twice": lambda: [torch.nn.Parameter(torch.ones(3))] * 2,
}


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("why", WRONG)
def test_parameters_that_cannot_be_cut_are_refused_in_one_line(why):
    """Beside one that can."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3)), *WRONG[why]()], lr=0.1)
    with pytest.raises(UserError, match=why) as error:
        prove_element_wise(optimizer)
    assert "\n" not in str(error.value)


def test_hooks_are_refused_in_one_line():
    """They would see no gradients."""
    weight = torch.nn.Parameter(torch.randn(4, 5))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(UserError, match="SGD has hooks of its own"):
        prove_element_wise(optimizer)
    handle.remove()
    prove_element_wise(optimizer)
