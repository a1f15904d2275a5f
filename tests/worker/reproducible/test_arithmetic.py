"""The digest of what a machine computes is the same again, and draws no random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hetero_hvd.worker.reproducible.arithmetic import digest


def test_it_is_the_same_again_and_leaves_no_trace():
    """Recurrent layers count only where the model has some."""
    linear, convolution, lstm = nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.LSTM(3, 3)
    several = nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2))
    before = torch.get_rng_state()
    plain = digest(linear)
    with torch.no_grad():
        assert digest(convolution) == plain
    assert digest(several) == digest(lstm) != plain
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_script_s_default_type_changes_nothing(dtype):
    """Of the numbers that are not said to be of one."""
    model = nn.LSTM(3, 3)
    plain = digest(model)
    torch.set_default_dtype(dtype)
    try:
        assert digest(model) == plain
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_kernel_is_seen():
    """Without oneDNN torch has other ones, here, too."""
    plain = digest(nn.Linear(2, 2))
    torch._C._set_mkldnn_enabled(False)
    try:
        assert digest(nn.Linear(2, 2)) != plain
    finally:
        torch._C._set_mkldnn_enabled(True)
