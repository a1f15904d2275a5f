"""What is left in `grad` after a step is the sum of what the passes of all workers have added."""

import itertools

import pytest
import torch
from rendezvous import Hub, run_together
from torch import nn

from hetero_hvd.worker.reduction.bucket import NUM_WIDENED
from hetero_hvd.worker.reduction.reducer import Reducer

NAMES = ("often", "seldom", "never")
PASSES = (("often",), ("often", "seldom"), ("seldom",), ())
"""Which parameters a pass uses."""

STEPS = [
    [one, other]
    for one, other in itertools.product(
        [list(passes) for passes in itertools.product(PASSES, repeat=2)], [[], [("often",)]]
    )
]
"""Of each step, the passes of each of two workers; the second one often has none."""


def weight(step, rank, number):
    """A factor that no other pass of the steps around has; sums of them are exact in any type."""
    return float(2 ** (2 * rank + number) * (1 + step % 4))


def expected(step, name):
    """The sum over both workers; None: nobody has used it."""
    used = [
        weight(step, rank, number)
        for rank, passes in enumerate(STEPS[step])
        for number, names in enumerate(passes)
        if name in names
    ]
    return sum(used) if used else None


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_step_has_its_own_gradients_alone(dtype, bucket_bytes, copies):
    """Nothing of an earlier step is left, whoever uses what; unused parameters have none."""
    found = [{}, {}]

    def work(context):
        collective = context.collective
        model = nn.ParameterDict({n: nn.Parameter(torch.ones(3, 2, dtype=dtype)) for n in NAMES})
        reducer = Reducer(bucket_bytes=bucket_bytes)
        reducer.build(model.values())
        for step, passes in enumerate(STEPS):
            reducer.copies = copies
            reducer.prepare(collective)
            mine = [n for n, names in enumerate(passes[collective.rank]) if names]
            for number, names in enumerate(passes[collective.rank]):
                if names:
                    reducer.last_backward = number == mine[-1]
                    factor = weight(step, collective.rank, number)
                    sum((model[name] * factor).sum() for name in names).backward()
            reducer.seal()
            gradients = reducer.take()
            for handle, arrived in gradients.operations():
                collective.wait(handle)
                arrived()
            assert gradients.are_finite()
            gradients.write_back(0.5)
            for name in NAMES:
                found[collective.rank][step, name] = model[name].grad
                if model[name].grad is not None:
                    found[collective.rank][step, name] = model[name].grad.clone()

    run_together(Hub(2), work)
    for (step, name), grad in (*found[0].items(), *found[1].items()):
        total = expected(step, name)
        if total is None:
            assert grad is None, (step, name)
        else:
            like = torch.full((3, 2), 0.5 * total, dtype=torch.float64).to(dtype)
            assert torch.equal(grad, like), (step, name)


@pytest.mark.parametrize("overlap", [False, True])
def test_half_precision_is_there_in_float32_a_few_buckets_at_a_time(overlap):
    """Whatever order the gradients come in; the sums are those of all at once."""
    most, order = [], (range(9), (8, 2, 5, 0, 7, 1, 3, 6, 4))

    def work(context):
        collective = context.collective
        model = nn.ParameterList(nn.Parameter(torch.ones(4).bfloat16()) for _ in range(9))
        reducer = Reducer(bucket_bytes=1)
        reducer.build(model)
        reducer.overlap = overlap
        for _ in range(2):
            reducer.prepare(collective)
            reducer.last_backward = True
            for number in order[collective.rank]:
                (model[number] * float(number + 1)).sum().backward()
                most.append(
                    sum(each.sum is not None and each.sum.is_wide for each in reducer._buckets)
                )
            reducer.seal()
            gradients = reducer.take()
            for handle, arrived in gradients.operations():
                most.append(sum(each.is_wide for each in gradients._sums))
                collective.wait(handle)
                arrived()
            assert not any(each.is_wide or each.handle for each in gradients._sums)
            assert gradients.are_finite()
            gradients.write_back(0.5)
            found = [parameter.grad.float().tolist() for parameter in model]
            assert found == [[number + 1.0] * 4 for number in range(9)]

    run_together(Hub(2), work)
    assert NUM_WIDENED <= max(most) <= NUM_WIDENED + 1 + overlap


def test_an_infinite_gradient_spoils_its_own_step_only():
    """Whose it is is found out by looking at what each worker adds, and not at what is left."""
    found = []

    def work(context):
        collective = context.collective
        model = nn.ParameterDict({name: nn.Parameter(torch.ones(2)) for name in NAMES})
        reducer = Reducer(bucket_bytes=1)
        reducer.build(model.values())
        reducer.inspects = True
        for name, factor in (("often", 1.0), ("seldom", float("inf")), ("often", 1.0)):
            reducer.prepare(collective)
            reducer.last_backward = True
            (model[name] * (factor if collective.rank else 1.0)).sum().backward()
            reducer.seal()
            gradients = reducer.take()
            for handle, arrived in gradients.operations():
                collective.wait(handle)
                arrived()
            if collective.rank:
                found.append((gradients.own_are_finite, gradients.are_finite()))
            gradients.write_back(1.0)

    run_together(Hub(2), work)
    assert found == [(True, True), (False, False), (True, True)]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_what_is_differentiated_again_is_summed_too():
    """A backward pass with `create_graph` leaves gradients that have gradients."""

    def work(context):
        model = nn.Linear(2, 1, bias=False).double()
        nn.init.ones_(model.weight)
        reducer = Reducer()
        reducer.build(model.parameters())
        for _ in range(2):
            reducer.prepare(context.collective)
            for number in range(2):
                reducer.last_backward = number == 1
                x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
                (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
                slope.square().sum().backward(create_graph=True)
            reducer.seal()
            gradients = reducer.take()
            for handle, _ in gradients.operations():
                context.collective.wait(handle)
            gradients.write_back(1.0)
            # slope = 2 (w . x) w, so |slope|^2 = 4 s^2 (w . w) with s = w . x = 2, w . w = 2
            # its gradient: 8 s (w . w) x + 8 s^2 w = 32 + 32, of two passes of two workers
            assert model.weight.grad.tolist() == [[256.0, 256.0]]

    run_together(Hub(2), work)
