"""What a driver asks a supervisor about its node: samples, and whether its owner is there.

The answers are signs in the supervisor's output. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from hetero_hvd.probes.sampling.follower import SampleFollower
from hetero_hvd.probes.sampling.sample_signs import sample_signs

SAMPLE, OWNER = "SAMPLE ", "OWNER "
"""What an order begins with: then come the seconds between two samples, or what is to be watched
as JSON: an `OwnerWish` of `probes.owner.owner_watch`, with GPUs by number or name; null: all."""

_OWNER_WATCH = "hetero_hvd.probes.owner.owner_watch"


class NodeOrders:
    """Tells what is wanted again and again; nothing at first.

    Args:
        visible_gpus: Gives the node's GPUs as CUDA numbers them.
        python: The interpreter.
        say: Tells people.
    """

    def __init__(
        self, visible_gpus: Callable[[], Sequence[str]], python: str, say: Callable[[str], None]
    ) -> None:
        self._visible_gpus = visible_gpus
        self._python = python
        self._say = say
        self._follower: SampleFollower | None = None
        self._owner: subprocess.Popen[bytes] | None = None

    def obey(self, line: bytes) -> None:
        """Do what a line says, if it is about the node."""
        order = line.decode(errors="replace")
        with suppress(ValueError):
            if order.startswith(SAMPLE):
                self._tell_every(float(order.removeprefix(SAMPLE)))
            elif order.startswith(OWNER):
                self._watch(json.loads(order.removeprefix(OWNER)))

    def _tell_every(self, seconds: float) -> None:
        """From now on, if nobody has asked before."""
        if self._follower is None:
            self._follower = SampleFollower(_tell_sample, seconds=seconds, say=self._say)
            self._follower.start()

    def _watch(self, wish: dict[str, object]) -> None:
        """From now on; whatever was watched before is not any more."""
        if self._owner is not None and self._owner.stdin is not None:
            self._owner.stdin.close()
            self._owner.wait()
        wish["gpus"] = list(_chosen(wish.get("gpus"), self._visible_gpus()))
        try:
            # It ends with its input, which nobody else holds: with this process, at the latest.
            self._owner = subprocess.Popen(
                [self._python, "-m", _OWNER_WATCH, json.dumps(wish)], stdin=subprocess.PIPE
            )
        except OSError as error:
            self._say(f"nothing is heard of the owner of this node: {error}")


def _chosen(listed: object, visible: Sequence[str]) -> Sequence[str]:
    """The GPUs of a node by the names that CUDA has for them."""
    if not isinstance(listed, list):
        return visible
    return [
        (visible[each] if each < len(visible) else str(each)) if isinstance(each, int) else each
        for each in listed
    ]


def _tell_sample(sample: bytes) -> None:
    with suppress(OSError):
        for sign in sample_signs(sample):
            os.write(sys.stdout.fileno(), sign)
