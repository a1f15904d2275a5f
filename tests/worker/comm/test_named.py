"""Sums of several models have names of their own, but for those that tell them apart."""

import torch

from hetero_hvd.worker.comm.named import named


class Sums:
    """Remembers what was summed."""

    rank = 3

    def __init__(self):
        self.names = []

    def sum_async(self, _tensor, name):
        """Note the name."""
        self.names.append(name)


def test_names():
    """All else is the rendezvous's; a model without a name has it as it is."""
    sums = Sums()
    assert named(sums, "") is sums
    critic = named(sums, "critic")
    for name in ("gradients.0.0", "totals.0"):
        critic.sum_async(torch.zeros(1), name)
    assert sums.names == ["critic.gradients.0.0", "totals.0"]
    assert critic.rank == 3
