"""Tells whether the owner of this node uses it: `python -m hetero_hvd.probes.owner.owner_watch`.

A process of its own, so that what hangs in a GPU's driver holds up no supervisor. It writes signs
into the output of the supervisor that has started it, and ends when its input does.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hetero_hvd.core.digits import whole_number
from hetero_hvd.core.guard.owner_presence import OwnerPresence
from hetero_hvd.messages import OwnerSeen, event_to_json
from hetero_hvd.probes.gpu.device_users import DeviceUsers
from hetero_hvd.probes.gpu.leased_names import leased_names
from hetero_hvd.probes.gpu.nvml import computing_processes
from hetero_hvd.probes.owner.others_load import OthersLoad
from hetero_hvd.probes.sampling.local_samples import MAX_WORDS
from hetero_hvd.probes.sampling.sample_signs import sample_signs

LOOK_SECONDS = 0.5


class OwnerWish(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be watched.

    Attributes:
        file: As long as it is there, the owner is.
        processors: That others may use, where the node has no GPU.
        idle_seconds: For so long he must not be seen until he counts as gone.
        gpus: As CUDA_VISIBLE_DEVICES names them; empty: the node has none.
        is_here: Whether he was there when somebody else watched, a moment ago.
    """

    file: str
    processors: float
    idle_seconds: float
    gpus: tuple[str, ...] = ()
    is_here: bool = False


class OwnerWatch:
    """What is seen of the owner, again and again.

    Args:
        wish: What is to be watched.
        computing: Gives UUID to processes that compute there.
    """

    def __init__(self, wish: OwnerWish, computing: Callable[[], dict[str, set[int]]]) -> None:
        self._wish = wish
        self._computing = computing
        self._load = OthersLoad()
        self._users = DeviceUsers()
        self._names = leased_names(wish.gpus, os.environ, slot="", is_emulated=False)
        self.presence = OwnerPresence(wish.idle_seconds, is_here=wish.is_here)

    def look(self, now_seconds: float) -> bool:
        """Whether he has come or gone."""
        return self.presence.look(self._seen(now_seconds), now_seconds)

    def _seen(self, now_seconds: float) -> str:
        load = 0.0 if self._names else self._load.look(now_seconds)
        if Path(self._wish.file).exists():
            return f"{self._wish.file} is there"
        if load > self.presence.load_limit(self._wish.processors):
            return f"others use {load:.1f} processors"
        return self._seen_on_gpus() if self._names else ""

    def _seen_on_gpus(self) -> str:
        for index, (uuid, pids) in enumerate(self._computing().items()):
            others: dict[int, int | None] = {
                pid: None for pid in pids if not self._load.is_ours(pid)
            }
            if others and any(_is_called(name, index, uuid) for name in self._names):
                return f"GPU {index} is used by {self._users.who(others)[0]}"
        return ""


def _is_called(name: str, index: int, uuid: str) -> bool:
    return name == uuid or whole_number(name.removeprefix("GPU ")) == index


def main(arguments: Sequence[str]) -> None:
    """Watch until the input ends."""
    wish = msgspec.json.decode(arguments[0], type=OwnerWish)
    is_first = True
    with ExitStack() as opened:
        computing = opened.enter_context(computing_processes()) if wish.gpus else dict
        watch = OwnerWatch(wish, computing)
        while True:
            if watch.look(time.monotonic()) or is_first:
                is_first = False
                told = event_to_json(OwnerSeen(words=watch.presence.words[:MAX_WORDS]))
                for sign in sample_signs(told):
                    os.write(sys.stdout.fileno(), sign)
            if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
