"""A process that is to end with the one that has started it, in whatever way that ends.

Standard library only: a supervisor costs little.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # not loaded between fork and exec, where this may be called


def dies_with(parent: int) -> bool:
    """Have the kernel kill this process when its parent is gone; False: it is already.

    Args:
        parent: Process id of the parent, as the parent knows itself.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
