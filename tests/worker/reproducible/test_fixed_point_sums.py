"""Order-free sums of tensors."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from hetero_hvd.core.numerics.fixed_point import NARROW, NON_FINITE, UNUSED, WIDE, ZERO, exponent_of
from hetero_hvd.worker.comm.single_process import SingleProcess
from hetero_hvd.worker.reproducible.fixed_point_sums import CHUNK, FixedPointSums

SIZES = [3, 64, 65, CHUNK + 1]
CPU = torch.device("cpu")
KINDS = pytest.mark.parametrize("kind", [WIDE, NARROW], ids=["64", "32"])


def grains_of(number):
    """Values of different magnitudes for each tensor."""
    generator = torch.Generator().manual_seed(number)
    return [
        [torch.randn(size, generator=generator) * 2.0 ** (-3 * i) for i, size in enumerate(SIZES)]
        for _ in range(number)
    ]


def sums_of(grains, kind, parts=1):
    """Added up by several workers, whose integers are added as Horovod does."""
    assumed = [exponent_of(float(max(g[i].abs().max() for g in grains))) for i in range(len(SIZES))]
    workers = [FixedPointSums(SIZES, device=CPU, fixed_point=kind) for _ in range(parts)]
    for rank, worker in enumerate(workers):
        worker.begin(assumed, num_grains=len(grains))
        for grain in grains[rank::parts]:
            for view, values in zip(worker.views, grain, strict=True):
                view.copy_(values)
            worker.add()
    first = workers[0]
    for other in workers[1:]:
        first._sums += other._sums
    first.submit(SingleProcess(), bucket_bytes=1000)
    first.wait(SingleProcess())
    first.decode([0.5] * len(SIZES))
    return [view.clone() for view in first.views]


@KINDS
def test_neither_order_nor_division_matters(kind):
    """The same bits, where float sums differ."""
    grains = grains_of(12)
    expected = sums_of(grains, kind)
    for parts, order in ((1, -1), (2, 1), (3, -1), (5, 1)):
        found = sums_of(grains[::order], kind, parts)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(sum(g[3] for g in grains), sum(g[3] for g in grains[::-1]))


@KINDS
def test_the_error_is_that_of_the_law(kind):
    """Against exact fractions: the bound of the fixed point, and half an ulp for float32."""
    grains = grains_of(12)
    found = sums_of(grains, kind)
    for index, size in enumerate(SIZES[:3]):
        observed = exponent_of(float(max(g[index].abs().max() for g in grains)))
        for place in range(size):
            exact = sum(Fraction(float(g[index][place])) for g in grains) / 2
            value = float(found[index][place])
            ulp = math.ldexp(1.0, math.frexp(value)[1] - 24)
            assert abs(value - exact) <= kind.worst_error(observed, 12) / 2 + ulp / 2
            if kind is WIDE:
                assert abs(value - exact) <= ulp


def test_the_largest_value_of_all_grains_is_observed():
    """Also infinities and NaN, which no later value hides; unused tensors say so."""
    sums = FixedPointSums([2, 2, 2, 2], device=CPU, fixed_point=WIDE)
    sums.begin([0] * 4, num_grains=2)
    for values in ((0.75, math.nan, 0.0, 1.0), (-3.0, 5.0, 0.0, 1.0)):
        for view, value in zip(sums.views, values, strict=True):
            view.fill_(value)
        sums.add()
    assert sums.observed([True, True, True, False]) == [2, NON_FINITE, ZERO, UNUSED]
