"""Tells of episodes outside: by a webhook and by a program, as nodes.yaml says now."""

from __future__ import annotations

import time
from collections.abc import Callable

from hetero_hvd.config import GuardConfig
from hetero_hvd.driver.guard.notifier import CLOSE_SECONDS, Notice, Notifier
from hetero_hvd.driver.guard.told_command import ToldCommand
from hetero_hvd.driver.guard.webhook import Webhook
from hetero_hvd.messages import GuardReported


class Notices:
    """Used in the loop's thread.

    Args:
        run_id: Of the run.
        config: The settings; None: nobody is told.
        say: Tells people of what does not work.
    """

    def __init__(self, run_id: str, config: GuardConfig | None, say: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._say = say
        self._ways: dict[str | tuple[str, ...], tuple[Webhook | ToldCommand, Notifier]] = {}
        self.follow(config)

    def follow(self, config: GuardConfig | None) -> None:
        """Take the settings as they are now; what they leave alone goes on."""
        wanted = [] if config is None else [one for one in (config.webhook, config.command) if one]
        for old in self._ways.keys() - set(wanted):
            self._end(old, 0.0)
        for new in wanted:
            if new not in self._ways:
                way = Webhook(new) if isinstance(new, str) else ToldCommand(new)
                self._ways[new] = way, Notifier(way.deliver, way.shown, self._say)

    def tell(self, event: GuardReported) -> None:
        """Begin to tell of an episode."""
        for _, notifier in self._ways.values():
            notifier.send(notice_of(event, self._run_id))

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Give up what has not been told in this time, which is that of all together."""
        deadline = time.monotonic() + timeout_seconds
        for name in tuple(self._ways):
            self._end(name, max(deadline - time.monotonic(), 0.0))

    def _end(self, name: str | tuple[str, ...], timeout_seconds: float) -> None:
        way, notifier = self._ways.pop(name)
        notifier.close(timeout_seconds)
        if isinstance(way, ToldCommand):
            way.close()


def notice_of(event: GuardReported, run_id: str) -> Notice:
    """What is told of an episode."""
    return {
        "run_id": run_id,
        "what": event.what,
        "reason": event.reason,
        "node": event.node,
        "device": event.device,
        "uuid": event.uuid,
        "workers": list(map(str, event.workers)),
        "words": event.words,
        "drained_devices": event.num_drained,
        "refused_devices": event.num_refused,
    }
