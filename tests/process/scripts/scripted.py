"""What the worker scripts of these tests share: arguments, and plans made by the test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from hetero_hvd.messages import BatchPlan
from hetero_hvd.worker.session.worker_context import init


class ScriptedPlanner:
    """Follows a list of shares: the first at the start, the next one after each exchange."""

    def __init__(self, shares):
        self.shares = [tuple(share) for share in shares]
        self.plan = None
        self.tables = []

    def use_grain(self, grain):
        """The shares are given in samples."""

    def joined(self, event):
        """Start with the first shares."""
        self.plan = BatchPlan(
            rendezvous_id=event.rendezvous_id,
            plan_id=1,
            from_step=event.applied_steps,
            exchange_steps=1,
            workers=event.workers,
            local_batch_sizes=self.shares[0],
            reason="the test says so",
        )
        return self.plan

    def timed(self, event):
        """Keep the table, and go on to the next shares."""
        self.tables.append(event)
        plan_id = self.plan.plan_id + 1
        shares = self.shares[(plan_id - 1) % len(self.shares)]
        self.plan = msgspec.structs.replace(self.plan, plan_id=plan_id, local_batch_sizes=shares)

    def newest(self):
        """The shares that are due."""
        return self.plan


def arguments():
    """The test's arguments."""
    return json.loads(sys.argv[2])


def report(result):
    """Leave this rank's result for the test."""
    Path(sys.argv[1]).write_text(json.dumps(result))


def follow(shares):
    """Make this worker's planner a scripted one; give it."""
    planner = ScriptedPlanner(shares)
    init().planner = planner
    return planner
