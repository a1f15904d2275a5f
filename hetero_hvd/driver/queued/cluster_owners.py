"""Tells a hub which nodes of a cluster their owners use, a line of JSON for each change.

`python -m hetero_hvd.driver.queued.cluster_owners NODES`, until its input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from hetero_hvd.config import NodesFile
from hetero_hvd.core.step_table import Observed
from hetero_hvd.driver.workers.node_samples import NodeSamples
from hetero_hvd.messages import OwnerSeen, event_to_json
from hetero_hvd.run.event_bus import EventBus

TICK_SECONDS = 0.1
TICKS_PER_READ = 10


async def tell_of_owners(path: Path) -> None:
    """Hear of the nodes with guests, as the file lists them."""
    file = NodesFile([path], os.environ, {})
    bus = EventBus()
    bus.subscribe(_tell, "")
    samples = NodeSamples(
        tuple, bus, seconds=0, away=lambda: (node for node in file.current.nodes if node.guest)
    )
    ending = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ending.set)
    ticks = 0
    while not ending.is_set():
        samples.look(time.monotonic())
        await asyncio.sleep(TICK_SECONDS)
        ticks += 1
        if not ticks % TICKS_PER_READ:
            file.refresh()
    await samples.close()


def _tell(_at_unix_seconds: float, event: Observed) -> None:
    if isinstance(event, OwnerSeen):
        sys.stdout.write(event_to_json(event).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(tell_of_owners(Path(sys.argv[1])))
