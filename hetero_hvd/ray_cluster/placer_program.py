"""Talks with Ray for the driver: `python -m hetero_hvd.ray_cluster.placer_program`.

A process of its own, as Ray ends whoever it has lost touch with: the driver must outlive that. What
to do comes over standard input; when that ends, so do this process and, by Ray, its actors.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import msgspec

from hetero_hvd.errors import UserError
from hetero_hvd.exit_codes import exit_of_user_error
from hetero_hvd.ray_cluster.placer import Placer
from hetero_hvd.ray_cluster.reports import PlacerOrder, PlacerReport

LOOK_SECONDS = 0.5
LEAVE_SECONDS = 5.0
"""For Ray to be told that its driver leaves; it sees that anyway."""


def _own_output() -> int:
    """A descriptor for our lines alone: what Ray and its libraries print goes to standard error."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return descriptor


def _wait_for_end(over: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    over.set()
    time.sleep(LEAVE_SECONDS)
    os._exit(0)


def main() -> int:
    """Follow the cluster until the input ends; gives the exit code."""
    output = _own_output()
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=PlacerOrder)
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()

    def tell(report: PlacerReport) -> None:
        os.write(output, msgspec.json.encode(report) + b"\n")

    try:
        from hetero_hvd.ray_cluster.cluster import RayCluster  # noqa: PLC0415 - may be missing

        cluster = RayCluster(order.address)
    except (UserError, ImportError) as error:
        may_pass = isinstance(error, UserError) and error.may_pass
        tell(PlacerReport(failed=str(error), is_lasting=not may_pass))
        return exit_of_user_error(may_pass=may_pass)
    tell(PlacerReport(connected=True))
    placer = Placer(cluster, order.resources, order.key, tell)
    while not over.is_set():
        placer.look(time.monotonic())
        over.wait(LOOK_SECONDS)
    cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
