"""The job's state, as GET /status tells it."""

from __future__ import annotations

from typing import Any

from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.run.tracking.run_tracker import RunTracker


def status_of(
    slots: WorkerPool, membership: Membership, tracker: RunTracker, *, is_ended: bool
) -> dict[str, Any]:
    """Plain data about workers, plan and progress."""
    plan = tracker.balancing.plan
    is_training = "training" if membership.hosts else "starting"
    return {
        "state": "ended" if is_ended else is_training,
        "step": tracker.summary.last_step,
        "workers": {
            str(slot.worker): {
                "host": slot.host,
                "ready": slot.ready is not None,
                "member": slot.host in membership.hosts,
                "restarts": slot.num_restarts,
                "pid": slot.ready.pid if slot.ready else None,
            }
            for slot in slots.all
        },
        "quarantined": {str(worker): why for worker, (_, why) in slots.quarantined.items()},
        "plan": {
            str(worker): share
            for worker, share in zip(plan.workers, plan.local_batch_sizes, strict=True)
        }
        if plan
        else None,
    }
