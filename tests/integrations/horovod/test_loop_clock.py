"""The phases of a loop that the script has written itself."""

import threading
import time

import pytest
import torch

from hetero_hvd.integrations.horovod.loop_clock import LoopClock, num_samples_of
from hetero_hvd.integrations.horovod.step_bounds import StepBounds

NAP = 0.02

BATCHES = {
    "a tensor": (torch.zeros(3, 2), 3),
    "a tuple": ((torch.zeros(4, 2), torch.zeros(4)), 4),
    "a dict of lists": ({"name": ["a"], "x": [torch.zeros(5)]}, 5),
    "a number first": ([torch.tensor(1.0), torch.zeros(6)], 6),
    "no tensor": (["text"], 0),
    "an object": (object(), 0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_samples_of_a_batch(name):
    """The length of the first tensor that has one."""
    batch, count = BATCHES[name]
    assert num_samples_of(batch) == count


def nap(result=None):
    """Something that takes a while."""
    time.sleep(NAP)
    return result


def with_loader(loop):
    """Two batches before an update, and an operation of the script's own in between."""
    for _ in range(2):
        loop.load(lambda: nap(torch.zeros(4)))
        nap()
        loop.wait(lambda: loop.wait(nap))  # as one operation of Horovod calls another one
        loop.backward(lambda: loop.backward(nap))  # as with checkpointed activations


def without_loader(loop):
    """Batches of the script's own making, and an operation before them."""
    loop.wait(nap)
    nap()
    loop.backward(nap)


def evaluating(loop):
    """Whatever is loaded for an evaluation is no part of a step."""
    loop.backward(lambda: None)
    loop.take()
    with torch.no_grad():
        loop.load(lambda: nap(torch.zeros(9)))


def leaving_a_batch(loop):
    """What follows on a batch that the script does not use is no forward pass."""
    loop.backward(lambda: None)
    loop.take()
    for _ in range(2):
        loop.load(lambda: torch.zeros(2))
        nap()
    with torch.no_grad():
        loop.load(lambda: torch.zeros(9))


def elsewhere(loop):
    """Threads of the script's own have loaders of their own."""
    loop.backward(lambda: None)
    loop.take()
    thread = threading.Thread(target=lambda: loop.load(lambda: nap(torch.zeros(9))))
    thread.start()
    thread.join()


LOOPS = {
    with_loader: (8, {"data_wait": 2, "forward": 2, "backward": 2, "comm_wait": 2}),
    without_loader: (1, {"forward": 1, "backward": 1, "comm_wait": 1}),
    evaluating: (1, {}),
    leaving_a_batch: (4, {}),
    elsewhere: (1, {}),
}


@pytest.mark.parametrize("steps", LOOPS)
def test_each_phase_has_its_own_time(steps):
    """None counts twice, and a wait in a forward pass is none of it."""
    loop = LoopClock(None)
    began = time.perf_counter()
    steps(loop)
    elapsed = time.perf_counter() - began
    num_samples, seconds = loop.take()
    expected, naps = LOOPS[steps]
    assert num_samples == expected
    assert {phase for phase, value in seconds.items() if value > NAP / 2} == naps.keys()
    assert all(seconds[phase] >= count * NAP for phase, count in naps.items())
    assert sum(seconds.values()) <= elapsed


ORDERS = {"aaaa": 4, "abab": 2, "aabab": 3, "abbb": 3, "abcabc": 2, "a" + "bc" * 3: 3}


@pytest.mark.parametrize("order", ORDERS)
def test_a_round_of_all_optimizers_is_a_step(order):
    """Unless the one that ends it is not used any more."""
    optimizers = {name: type(name, (), {})() for name in set(order)}
    bounds = StepBounds()
    assert sum(bounds.ends_step(optimizers[name]) for name in order) == ORDERS[order]
