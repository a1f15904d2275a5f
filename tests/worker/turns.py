"""Workers as threads that take turns: each has the global random generators for itself."""

from __future__ import annotations

import random
import threading

import numpy as np
import torch
from rendezvous import Hub, run_together

from hetero_hvd.worker.data.seeding import seed_all


class InTurns(threading.Condition):
    """While a worker waits for the others, one of them runs."""

    def __init__(self):
        super().__init__()
        self.turn = threading.Lock()
        self.whose = None

    def wait_for(self, predicate, timeout=None):
        """See `threading.Condition`; what the others draw meanwhile is not seen here."""
        if self.whose != threading.get_ident():
            return super().wait_for(predicate, timeout)
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        self.whose = None
        self.turn.release()
        found = super().wait_for(predicate)  # however long the others take, one after the other
        self.release()
        self.take_turn()
        self.acquire()
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        return found

    def take_turn(self):
        """Until the next wait, or `end_turn`."""
        self.turn.acquire()
        self.whose = threading.get_ident()

    def end_turn(self):
        """Let another worker run."""
        self.whose = None
        self.turn.release()


def run_in_turns(hub, work):
    """Run `work(context)` for each worker, with generators that differ at the start."""
    hub.changed = InTurns()

    def one(context):
        hub.changed.take_turn()
        try:
            seed_all(context.settings.worker.slot)
            return work(context)
        finally:
            hub.changed.end_turn()

    return run_together(hub, one)


def on_each_size(work, sizes=(1, 2, 3)):
    """What all workers of jobs of several sizes found."""
    return [found for size in sizes for found in run_in_turns(Hub(size), work)]
