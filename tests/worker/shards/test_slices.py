"""What a step takes beside parameters and the optimizer's state."""

import pytest
import torch

from hetero_hvd.worker.shards.slices import LATER_BYTES, Layout


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (torch.float32, 1000 * 4 + 2 * 3 * 256 * 4),
        (torch.float64, 1000 * 8 + 2 * 3 * 256 * 8),
        (torch.bfloat16, 1000 * (2 + 4) + 2 * 3 * 256 * 2),
        (torch.float16, 1000 * (2 + 4) + 2 * 3 * 256 * 2),
    ],
)
def test_gradients_and_what_travels_are_counted(dtype, wanted):
    """Gradients of half precision travel in float32; parameters as they are, to and from."""
    parameter = torch.nn.Parameter(torch.zeros(10, 100, dtype=dtype))
    assert Layout(torch.optim.SGD([parameter])).step_bytes(3, 10**6) == wanted + LATER_BYTES
    many = [torch.nn.Parameter(torch.zeros(1000, dtype=dtype)) for _ in range(9)]
    found = Layout(torch.optim.SGD(many)).step_bytes(0, 500) - 9000 * dtype.itemsize - LATER_BYTES
    assert found == (3 * (250 + 4000) if dtype.itemsize == 2 else 0)
