"""Makes the threads of `rendezvous` available to the tests."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _torch_is_warm():
    """The first step of an optimizer imports much of torch: not while other threads wait for it."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.sum().backward()
    torch.optim.SGD([parameter], lr=0.1).step()


@pytest.fixture
def _torch_is_put_back():
    """The reproducible mode switches torch for the whole process; small models want no threads."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(False)
