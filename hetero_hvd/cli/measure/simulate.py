"""`hetero-hvd simulate`: balancing policies on a described or recorded cluster; queues."""

from __future__ import annotations

import argparse

from hetero_hvd.measure import simulate

add_arguments = simulate.add_arguments


def act(arguments: argparse.Namespace) -> int:
    """Print the comparison."""
    print(simulate.run(arguments))
    return 0
