"""One rendezvous: its members, that their replicas are equal, and the plan they follow."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from hetero_hvd.errors import InvariantError, JobError
from hetero_hvd.messages import BatchPlan, WorkerId, WorkersJoined
from hetero_hvd.worker.collective import Collective
from hetero_hvd.worker.description import Work
from hetero_hvd.worker.exchange import Exchange
from hetero_hvd.worker.payloads import broadcast_bytes, gather_bytes
from hetero_hvd.worker.planner import Planner
from hetero_hvd.worker.replica import Replica

FRESH = -1
"""Applied steps of a worker that has no state worth keeping."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What each worker tells the others when it enters a rendezvous.

    Attributes:
        worker: Who it is.
        applied_steps: Steps applied, or `FRESH`.
        epoch: Epoch that it is in.
        num_evaluations: Evaluations done since the last applied step.
        checksum: Digest of its replica.
        rendezvous_id: The last rendezvous that it was in; 0 for none.
        global_batch_size: From its script.
        capacity: Its largest local batch, samples; -1 = not limited.
        prefetch_steps: Steps that it may load ahead.
        staleness_bound: Steps that it may have under way after a step.
        numerics: What its bits depend on, `; ` between two facts; empty if that does not matter.
        micro_batch_size: Samples in one of its forward passes at most; 0 = not limited.
        work: What it trains, and on what.
        is_new: Whether its script has not begun its loop yet, whatever it has from a checkpoint.
    """

    worker: WorkerId
    applied_steps: int
    epoch: int
    num_evaluations: int
    checksum: str
    rendezvous_id: int
    global_batch_size: int
    capacity: int
    prefetch_steps: int
    staleness_bound: int = 0
    numerics: str = ""
    micro_batch_size: int = 0
    work: Work = Work()
    is_new: bool = False


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """How the replicas were made equal.

    Attributes:
        broadcast: Whether state was copied.
        num_fresh: Members that came without state.
        num_new: Members whose scripts have not begun their loops yet.
    """

    broadcast: bool
    num_fresh: int
    num_new: int


class Membership:
    """The members of one rendezvous, after `meet` has made their replicas equal.

    Attributes:
        rendezvous_id: Version of the membership; the same on all members.
        workers: Members in rank order.
        consistency: How the replicas were made equal.
        prefetch_steps: The most that any of them may load ahead.
        exchange: The exchange of timings and plans.
    """

    def __init__(
        self,
        collective: Collective,
        reports: list[Report],
        consistency: Consistency,
        plan: BatchPlan,
    ) -> None:
        self.rendezvous_id = plan.rendezvous_id
        self.workers = tuple(report.worker for report in reports)
        self.consistency = consistency
        self.prefetch_steps = max(report.prefetch_steps for report in reports)
        self.exchange = Exchange(
            collective, self.workers, plan, self.prefetch_steps, reports[0].staleness_bound
        )
        self._plans: deque[BatchPlan] = deque([plan])

    @property
    def plan(self) -> BatchPlan:
        """The newest plan, in force or about to be."""
        return self._plans[-1]

    def follow(self, plan: BatchPlan, *, applied_steps: int) -> None:
        """Switch to `plan` from its `from_step` on.

        Plans in between are kept until they are of no use to the steps from `applied_steps` on: who
        loads ahead has asked for those steps already, and who does not must get the same answer.
        """
        if plan.plan_id != self.plan.plan_id:
            self._plans.append(plan)
        while len(self._plans) > 1 and self._plans[1].from_step <= applied_steps:
            self._plans.popleft()

    def shares_at(self, step: int) -> tuple[int, ...]:
        """Local batch sizes in rank order for a step, counted from the start of training."""
        for plan in reversed(self._plans):
            if plan.from_step <= step:
                return plan.local_batch_sizes
        return self._plans[0].local_batch_sizes


def exchange_reports(collective: Collective, report: Report) -> list[Report]:
    """What all members of a new rendezvous report, in rank order.

    Raises:
        Interrupted: The rendezvous broke.
        JobError: The workers run different scripts.
    """
    payloads = gather_bytes(collective, msgspec.msgpack.encode(report), "reports")
    reports = [msgspec.msgpack.decode(payload, type=Report) for payload in payloads]
    sizes = {r.global_batch_size: r.worker for r in reports}
    if len(sizes) > 1:
        found = ", ".join(f"{worker}: {size}" for size, worker in sizes.items())
        raise JobError(f"the workers' scripts differ: global batch sizes {found}")
    bounds = {(r.staleness_bound, r.work.wait_free): r.worker for r in reports}
    if len(bounds) > 1:
        found = ", ".join(
            f"{worker}: {bound}" + ", wait_free" * wait_free
            for (bound, wait_free), worker in bounds.items()
        )
        raise JobError(f"the workers' scripts differ: staleness bounds {found}")
    for other in reports[1:]:
        if other.numerics != reports[0].numerics:
            raise JobError(_unequal(reports[0], other))
    return reports


def _unequal(one: Report, other: Report) -> str:
    first, second = one.numerics.split("; "), other.numerics.split("; ")
    mine = ", ".join(fact for fact in first if fact not in second)
    theirs = ", ".join(fact for fact in second if fact not in first)
    return (
        f"reproducible: {one.worker} has {mine or 'not this mode'}, {other.worker} has "
        f"{theirs or 'not this mode'}: their results would differ; all workers need the same"
    )


def next_rendezvous_id(reports: list[Report]) -> int:
    """Of the rendezvous in which these were exchanged; no member has seen it before."""
    return 1 + max(report.rendezvous_id for report in reports)


def meet(
    collective: Collective, replica: Replica, reports: list[Report], planner: Planner
) -> Membership:
    """Make all replicas of a new rendezvous equal, and get its first plan.

    If all have applied the same number of steps and hold the same bits, nothing is copied. Else the
    most advanced member's state goes to all the others, and all prove that they hold it. Of those
    with as many steps, one that has not left the epoch yet counts: another's evaluations may be
    missing.

    Raises:
        Interrupted: The rendezvous broke; enter the next one and call again.
        InvariantError: The replicas differ after copying.
    """
    source = max(range(len(reports)), key=lambda rank: (*_progress(reports[rank]), -rank))
    best = reports[source]
    stale = [
        r for r in reports if (r.applied_steps, r.checksum) != (best.applied_steps, best.checksum)
    ]
    if stale:
        mine = collective.rank == source
        payload = broadcast_bytes(collective, replica.dump() if mine else b"", source, "replica")
        if reports[collective.rank] in stale:
            replica.load(payload)
        proofs = gather_bytes(collective, replica.checksum().encode(), "proofs")
        if len(set(proofs)) != 1:
            raise InvariantError(
                f"replicas differ after copying: {dict(zip(reports, proofs, strict=True))}"
            )
    plan = _first_plan(collective, reports, planner)
    consistency = Consistency(
        broadcast=bool(stale),
        num_fresh=sum(r.applied_steps == FRESH for r in reports),
        num_new=sum(r.is_new for r in reports),
    )
    return Membership(collective, reports, consistency, plan)


def _progress(report: Report) -> tuple[int, int, int]:
    return report.applied_steps, -report.epoch, report.num_evaluations


def _first_plan(collective: Collective, reports: list[Report], planner: Planner) -> BatchPlan:
    """Rank 0 asks the planner; all get its answer."""
    payload = b""
    if collective.rank == 0:
        event = WorkersJoined(
            rendezvous_id=next_rendezvous_id(reports),
            workers=tuple(report.worker for report in reports),
            applied_steps=max(0, *(report.applied_steps for report in reports)),
            global_batch_size=reports[0].global_batch_size,
            capacities=tuple(report.capacity for report in reports),
            prefetch_steps=max(report.prefetch_steps for report in reports),
            undivided=reports[0].work.undivided,
            micro_batch_sizes=tuple(report.micro_batch_size for report in reports),
            devices=tuple(report.work.device for report in reports),
            memory_bytes=tuple(report.work.memory_bytes for report in reports),
            model=reports[0].work.model,
            wait_free=reports[0].work.wait_free,
        )
        payload = msgspec.msgpack.encode(planner.joined(event))
    return msgspec.msgpack.decode(gather_bytes(collective, payload, "plan")[0], type=BatchPlan)
