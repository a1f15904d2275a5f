"""The sampler of a node: `python -m hetero_hvd.probes.sampling.sampler FOLDER LOCK PARENT`.

Writes a sample each second, or more often while somebody wants that, until its input ends or its
folder is no longer the one that is used.
Dies with the process that has started it, even where it hangs in a call of a GPU's driver.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import msgspec

from hetero_hvd.messages import event_to_json
from hetero_hvd.probes.kernel.machine_identity import machine_identity
from hetero_hvd.probes.kernel.parent_process import dies_with
from hetero_hvd.probes.sampling.equipment import take_equipment
from hetero_hvd.probes.sampling.follower import EQUIPMENT, SAMPLE
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
from hetero_hvd.probes.sampling.sample_rate import RateWishes
from hetero_hvd.probes.sampling.shared_folder import SharedFolder

NICE = 5


def main() -> int:
    """Sample until told to end."""
    path, lock, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if not dies_with(parent):
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for who has started it
    os.nice(NICE)
    folder = SharedFolder(path)
    sampler = NodeSampler()
    sampler.take()  # rates need a sample before
    equipment = take_equipment()
    folder.write(EQUIPMENT, event_to_json(msgspec.structs.replace(equipment, machine_id=_ID)))
    wishes = RateWishes(folder)
    due_seconds = time.monotonic()
    while folder.is_locked_by(lock):
        sample = msgspec.structs.replace(sampler.take(), machine_id=_ID)
        folder.write(SAMPLE, event_to_json(sample))
        due_seconds = max(due_seconds + wishes.seconds(), time.monotonic())
        if is_ended_by(due_seconds):
            return 0
    return 0


def is_ended_by(due_seconds: float) -> bool:
    """Wait until a time, monotonic, or until the input ends; whether it has.

    A sample that took longer than there is time between two is due already.
    """
    wait_seconds = max(0.0, due_seconds - time.monotonic())
    readable, _, _ = select.select([sys.stdin], [], [], wait_seconds)
    return bool(readable)


_ID = machine_identity()

if __name__ == "__main__":
    sys.exit(main())
