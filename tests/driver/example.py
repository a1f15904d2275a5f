"""Runs an example of docs/examples whose workers may meet a fault in an update.

Usage: example.py JSON SCRIPT [ARGUMENT ...], with the fields of `trainer_faults.CASE`, and
`in_float64`: whether PyTorch's default is double precision. On each processor single precision
rounds otherwise for batches of another size, and a ReLU that meets 0 from the other side changes a
gradient by more.
"""

import itertools
import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trainer_faults import CASE, fault_at, give_time, tell_that_it_is_back

steps = itertools.count()
make_optimizer = torch.optim.Optimizer.__init__


def before_update(*_):
    """Called by any optimizer; the steps are those that this process has taken."""
    from hetero_hvd.worker.session.worker_context import init  # noqa: PLC0415 - torch first

    step = next(steps)
    fault_at(f"update {step}")
    give_time(step, init().collective.size)


def make_and_tell(*arguments, **named):
    """All that is slow is done when there is an optimizer."""
    make_optimizer(*arguments, **named)
    tell_that_it_is_back()


if CASE.get("in_float64"):
    torch.set_default_dtype(torch.float64)
if CASE.get("faults"):
    torch.optim.Optimizer.__init__ = make_and_tell
    register_optimizer_step_pre_hook(before_update)
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
