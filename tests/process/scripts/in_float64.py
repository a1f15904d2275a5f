"""Runs a script whose numbers are to be compared in double precision.

Usage: in_float64.py SCRIPT [ARGUMENT ...]. On each processor single precision rounds otherwise for
batches of another size, and a ReLU that meets 0 from the other side changes a gradient by more.
"""

import runpy
import sys

import torch

torch.set_default_dtype(torch.float64)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
