"""One rendezvous: its members, that their replicas are equal, and the plan they follow."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from hetero_hvd.core.balance.planner import stretched
from hetero_hvd.errors import InvariantError, JobError
from hetero_hvd.messages import BatchPlan, Calibrated, PassTiming, WorkersJoined
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.replica_check import Holder, Undecided, compare
from hetero_hvd.worker.recovery.reports import FRESH, Report, members_of, next_rendezvous_id
from hetero_hvd.worker.recovery.transfer import copy_state
from hetero_hvd.worker.session.plan_source import Planner
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer
from hetero_hvd.worker.step.training_step import kept_ranks
from hetero_hvd.worker.timing.timing_exchange import TimingExchange

logger = logging.getLogger(__name__)

Measure = Callable[[int], tuple[PassTiming, ...]]
Told = tuple[bool, tuple[PassTiming, ...]]


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """How the replicas were made equal.

    Attributes:
        broadcast: Whether state was copied.
        checksum: Of all replicas now, but for rounding.
        num_fresh: Members that came without state.
        num_new: Members whose scripts have not begun their loops yet.
        kept_ranks: Which ranks the members have had before, if all submit their parts of the steps
            that broke; empty: these steps are computed anew.
    """

    broadcast: bool
    checksum: str
    num_fresh: int
    num_new: int
    kept_ranks: tuple[int, ...] = ()


class WorkerMembership:
    """The members of one rendezvous, after `meet` has made their replicas equal.

    Attributes:
        rendezvous_id: Version of the membership; the same on all members.
        workers: Members in rank order.
        members: The same, with their arithmetic.
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
        self.members = _members(reports)
        self.consistency = consistency
        self.prefetch_steps = max(report.prefetch_steps for report in reports)
        self._staleness_bound = reports[0].staleness_bound
        self._plans: deque[BatchPlan] = deque()
        self._begin(collective, plan)

    def _begin(self, collective: Collective, plan: BatchPlan, *, at_once: bool = True) -> None:
        """Follow a plan, the first one or what has come out of its calibration."""
        if at_once:
            self._plans.clear()
        self._plans.append(plan)
        self.exchange = TimingExchange(
            collective, self.workers, plan, self.prefetch_steps, self._staleness_bound
        )

    @property
    def plan(self) -> BatchPlan:
        """The newest plan, in force or about to be."""
        return self._plans[-1]

    @property
    def has_found_state(self) -> bool:
        """Whether a member has come with a state, of its own or from a checkpoint."""
        return self.consistency.num_fresh < len(self.workers)

    def check_equal_start(self, mode: str) -> None:
        """Refuse members that have all come without state, and with different models.

        Args:
            mode: Which needs equal ones, by name.

        Raises:
            JobError: That is so.
        """
        if self.consistency.broadcast and not self.has_found_state:
            raise JobError(
                f"{mode}: the workers start with different parameters: call torch.manual_seed "
                "before you build the model"
            )

    def calibrate(
        self,
        collective: Collective,
        planner: Planner,
        measure: Measure,
        *,
        applied_steps: int,
        can_retake: bool,
    ) -> bool:
        """Measure, as the plan asks for it, until a plan does not; all members call it at once.

        Args:
            collective: The rendezvous.
            planner: Answers what was found; asked by rank 0 alone.
            measure: Computes so many samples and gives how many it were, and in how many seconds.
            applied_steps: The next step to be taken.
            can_retake: Whether this worker can still take another part of that step.

        Returns:
            Whether the step is taken by the new plan; else that holds from a later one on, as a
            member has its part of the step already.

        Raises:
            Interrupted: The rendezvous broke.
        """
        may_retake = True
        while ratio := self.plan.calibration_ratio:
            share = self.plan.local_batch_sizes[collective.rank]
            told = can_retake, measure(max(1, round(share * ratio))) if share else ()
            payloads = gather_bytes(collective, msgspec.msgpack.encode(told), "calibration")
            answers = [msgspec.msgpack.decode(each, type=Told) for each in payloads]
            may_retake &= all(can for can, _ in answers)
            payload = b""
            if collective.rank == 0:
                found = Calibrated(
                    rendezvous_id=self.rendezvous_id,
                    plan_id=self.plan.plan_id,
                    measured=tuple(passes for _, passes in answers),
                )
                plan = planner.calibrated(found) or replace(self.plan, calibration_ratio=0.0)
                first = applied_steps + (0 if may_retake else 1 + self.prefetch_steps)
                payload = msgspec.msgpack.encode(replace(plan, from_step=first))
            payload = gather_bytes(collective, payload, "plan")[0]
            self._begin(
                collective, msgspec.msgpack.decode(payload, type=BatchPlan), at_once=may_retake
            )
        return may_retake

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


def meet(
    collective: Collective,
    replica: Replica,
    reports: list[Report],
    planner: Planner,
    shards: ShardedOptimizer | None = None,
) -> WorkerMembership:
    """Make all replicas of a new rendezvous equal, and get its first plan.

    If all have applied the same number of steps and hold the same bits, or what the rounding of
    unlike processors makes of them, nothing is copied. Else one member's state goes to all the
    others, and all prove that they hold it; see `_rightful`.

    Raises:
        Interrupted: The rendezvous broke; enter the next one and call again.
        Undecided: Nobody can tell which state is right.
        PartsLost: All are lost who had a part of the optimizer's state.
        InvariantError: The replicas differ after copying.
    """
    if shards is not None:
        shards.check(members_of(reports))
    own = reports[collective.rank]
    source, rounded = _rightful(collective, replica, reports)
    best = reports[source]
    takers = [
        rank
        for rank, report in enumerate(reports)
        if (report.applied_steps, report.checksum) != (best.applied_steps, best.checksum)
    ]
    is_copied = not rounded.issuperset(takers)
    collective.laps.lap("vote")
    if is_copied:
        copy_state(collective, replica, source, "replica", takers=takers)
        collective.laps.lap("copy")
        proof = replica.checksum() if collective.rank in takers else own.checksum
        proofs = gather_bytes(collective, proof.encode(), "proofs")
        if len(set(proofs)) != 1:
            raise InvariantError(
                f"replicas differ after copying: {dict(zip(reports, proofs, strict=True))}"
            )
        collective.laps.lap("proof")
    plan = first_plan(collective, reports, planner)
    if shards is not None:
        shards.meet(collective, members_of(reports), plan.local_batch_sizes)
    collective.laps.lap("plan")
    consistency = Consistency(
        broadcast=is_copied,
        checksum=best.checksum,
        num_fresh=sum(r.applied_steps == FRESH for r in reports),
        num_new=sum(r.is_new for r in reports),
        kept_ranks=() if is_copied else kept_ranks([report.kept for report in reports]),
    )
    return WorkerMembership(collective, reports, consistency, plan)


def _rightful(
    collective: Collective, replica: Replica, reports: list[Report]
) -> tuple[int, set[int]]:
    """Whose state all are to have, and who has it but for rounding; ranks.

    It is that of the most advanced; of those with as many steps, one that has not left the epoch
    yet, as another's evaluations may be missing. Where theirs differ by more than rounding, one was
    changed by something else than training: what most of them hold is right; else what is still as
    it was when all were last compared.
    """
    best = max(map(_progress, reports))
    ahead = [rank for rank, report in enumerate(reports) if _progress(report) == best]
    digests = [report.checksum for report in reports]
    if len({digests[rank] for rank in ahead}) == 1 or all(reports[rank].is_new for rank in ahead):
        return ahead[0], set()
    comparison = compare(collective, replica, _members(reports), digests, ahead)
    right, how = comparison.right, "most hold another one"
    if right is None:
        how = "another one is as it was when all were last compared"
        known = {digests[rank] for rank in ahead if _is_unchanged(reports[rank])}
        right = known.pop() if len(known) == 1 else None
    words = comparison.in_words(right)
    if right is None:
        raise Undecided(words)
    source = next(rank for rank in ahead if digests[rank] == right)
    wrong = {member.worker for member in comparison.wrong(right)}
    if collective.rank == source and wrong:
        logger.error("after step %d %s: replaced, as %s", best[0], words, how)
    return source, {rank for rank in ahead if reports[rank].worker not in wrong}


def _members(reports: list[Report]) -> tuple[Holder, ...]:
    return tuple(Holder(report.worker, report.work.arithmetic) for report in reports)


def _is_unchanged(report: Report) -> bool:
    return report.checksum == report.agreed


def _progress(report: Report) -> tuple[int, ...]:
    return report.applied_steps, -report.epoch, report.steps_on_batch, report.num_evaluations


def _capacities(reports: list[Report]) -> tuple[int, ...]:
    """Of the members; at the start as nodes.yaml says, after a loss so that the batch fits."""
    given = tuple(report.capacity for report in reports)
    if next_rendezvous_id(reports) == 1:
        return given
    found = stretched(given, reports[0].global_batch_size)
    if found != given:
        logger.warning(
            "the workers that are left take %d samples at a time (max_local_batch_size) of the %d "
            "of a step: each takes its part in several passes",
            sum(given),
            reports[0].global_batch_size,
        )
    return found


def first_plan(collective: Collective, reports: list[Report], planner: Planner) -> BatchPlan:
    """Rank 0 asks the planner, which hears of the members by that; all get its answer.

    Raises:
        Interrupted: The rendezvous broke.
    """
    payload = b""
    if collective.rank == 0:
        event = WorkersJoined(
            rendezvous_id=next_rendezvous_id(reports),
            workers=tuple(report.worker for report in reports),
            applied_steps=max(0, *(report.applied_steps for report in reports)),
            global_batch_size=reports[0].global_batch_size,
            capacities=_capacities(reports),
            prefetch_steps=max(report.prefetch_steps for report in reports),
            undivided=reports[0].work.undivided,
            micro_batch_sizes=tuple(report.micro_batch_size for report in reports),
            devices=tuple(report.work.device for report in reports),
            memory_bytes=tuple(report.work.memory_bytes for report in reports),
            model=reports[0].work.model,
            shares_vary=reports[0].work.shares_vary,
            shares_fixed=reports[0].work.shares_fixed,
            can_calibrate=all(report.work.can_calibrate for report in reports),
        )
        payload = msgspec.msgpack.encode(planner.joined(event))
    return msgspec.msgpack.decode(gather_bytes(collective, payload, "plan")[0], type=BatchPlan)
