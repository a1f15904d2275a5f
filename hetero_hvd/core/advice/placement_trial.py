"""Placements of a running job, measured one after the other: which is due, and which is best.

A placement is a set of nodes. The first steps of all together give each worker's curve and what
reductions cost; by these every set is predicted, and those whose interval reaches what was measured
of the best so far are measured too, what may be fastest first. Those that may still be the best are
then measured again in rounds, in turns forwards and backwards, so that a steady drift is nobody's,
until their intervals separate (`core.advice.race`).

What is said of those that were measured in two rounds or more is wrong in 5 % of trials at most. Of
those that were left before, by their prediction or far behind when they were measured once, no
probability is promised; the verdict of each says which it was.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from hetero_hvd.core.advice.advice import Goal
from hetero_hvd.core.advice.placements import MeasuredJob
from hetero_hvd.core.advice.predicted import Nodes, predicted_speeds
from hetero_hvd.core.advice.race import MIN_PAIRS, error_of_a_pair
from hetero_hvd.core.advice.race_verdict import AS_GOOD, verdict_of
from hetero_hvd.core.advice.trial_visit import TriedSet, Visit, median_of, shown_speed
from hetero_hvd.core.cost.placement import ShareTime
from hetero_hvd.core.membership.set_aside import counts_in_full
from hetero_hvd.core.step_table import StepTable
from hetero_hvd.messages import PlacementTried, TrialReported, WorkerId, WorkersJoined

MAX_POWER_SECONDS = 10.0
"""By energy, a visit goes on until the power of each node was sampled, or for so long."""

MAX_MEASURED = 7
"""Placements that are measured at most, all nodes together among them."""

MAX_ROUNDS = 6
MAX_ROWS = 500
"""Exchanges of a worker of which its curve is made; the newest."""

FREE = 1e-12
"""Money or joules per second of what costs nothing, so that it can be divided by."""

MAX_VOID = 2
"""Times that a placement is tried in vain; then it is left."""

NEVER_BEGAN = (
    "the job has ended before a placement was measured: a trial needs a script that trains by "
    "hetero_hvd.Trainer, and some hundred steps"
)

NOBODY = WorkersJoined(
    rendezvous_id=0,
    workers=(),
    applied_steps=0,
    global_batch_size=0,
    capacities=(),
    prefetch_steps=0,
)


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """What a trial of placements is to do.

    Attributes:
        goal: By what they are compared.
        num_steps: Of a placement in each round, at least, >= 1.
        min_np: Fewest workers, >= 1.
        patience_seconds: So long a placement may take to come together, > 0.
    """

    goal: Goal = "speed"
    num_steps: int = 20
    min_np: int = 1
    patience_seconds: float = 600.0


class PlacementTrial:
    """A fold over memberships, tables and losses. Whoever drives it keeps to `wanted`.

    Args:
        settings: What to do.

    Attributes:
        wanted: Workers that should train now, and no others; None: whoever can.
        is_over: Whether nothing more will be tried.
    """

    def __init__(self, settings: TrialSettings) -> None:
        self.wanted: frozenset[WorkerId] | None = None
        self.is_over = False
        self._settings = settings
        self._news: list[str] = []
        self._joined = NOBODY
        self._members: frozenset[WorkerId] = frozenset()
        self._times: dict[WorkerId, deque[ShareTime]] = defaultdict(lambda: deque(maxlen=MAX_ROWS))
        self._watts: dict[str, list[float]] = defaultdict(list)
        self._prices: Mapping[str, float] = {}
        self._placements: dict[Nodes, TriedSet] = {}
        self._visit: Visit | None = None
        self._due: list[TriedSet] = []
        self._round = 0
        self._is_complete = False
        self._words = ""
        self._step = -1

    @property
    def is_measuring(self) -> bool:
        """Whether the newest table is part of a measurement."""
        return self._visit is not None and bool(self._visit.tables)

    def news(self) -> list[str]:
        """What people should know, a line each, and each once."""
        told, self._news = self._news, []
        return told

    def priced(self, per_hour: Mapping[str, float]) -> None:
        """What nodes cost from now on."""
        self._prices = per_hour

    def joined(self, event: WorkersJoined) -> None:
        """There is a new membership; who was to stay may be gone before its end is told."""
        before, self._members = self._members, frozenset(event.workers)
        if gone := (self.wanted or frozenset()) & (before - self._members):
            self._void(f"{min(gone)} is gone")
        if not event.follows_plan:
            how = "the script divides its data itself" if event.shares_fixed else "no plan does"
            self._end(f"nothing to compare: planned shares are, and here {how}")

    def lost(self, worker: WorkerId) -> None:
        """A worker is gone. If it was to stay, all come back: the others may be needed."""
        if self.wanted is not None and worker in self.wanted & self._members:
            self._members -= {worker}
            self._void(f"{worker} is gone")

    def timed(
        self,
        table: StepTable,
        *,
        at_seconds: float,
        there: Collection[WorkerId],
        is_settled: bool,
        watts: Mapping[str, float],
    ) -> None:
        """Take the next table.

        Args:
            table: Of the newest membership.
            at_seconds: When it came.
            there: Workers that train, or could.
            is_settled: Whether nobody is starting or leaving.
            watts: Node to its mean power while `is_measuring`, where it was measured.
        """
        self._step = table.step
        self._note_times(table)
        if self.is_over or (not self._joined.workers and not is_settled):
            return
        if not self._joined.workers:
            self._begin(table, at_seconds)
            return
        self._leave_out_those_that_miss(there)
        visit, num_steps = self._visit, self._settings.num_steps
        if visit is None:
            if is_settled:
                self._go_on(at_seconds)
        elif visit.placement.verdict:
            self._void("a node of it is not there any more")
        elif frozenset(table.workers) != self.wanted:
            if at_seconds > visit.since_seconds + self._settings.patience_seconds:
                self._void(f"not together after {self._settings.patience_seconds:g} s")
        elif visit.take(table, num_steps) and self._has_power(visit, at_seconds, watts):
            self._measured(visit)
            for node in visit.placement.nodes & watts.keys():
                self._watts[node].append(watts[node])
            self._visit = None
            self._go_on(at_seconds)

    def _note_times(self, table: StepTable) -> None:
        """For the curves: what shares a job begins with tells the most of them."""
        for worker, row in table.measured.items() if counts_in_full(table) else ():
            share, busy = row.local_batch_size, row.busy_seconds
            if share and busy > 0:
                time = ShareTime(share=share, busy_seconds=busy, num_steps=row.num_steps)
                self._times[worker].append(time)

    def close(self) -> None:
        """The job ends."""
        is_begun = any(placement.speeds for placement in self._placements.values())
        self._end("the job has ended before the trial was over" if is_begun else NEVER_BEGAN)

    def report(self) -> TrialReported:
        """What was found so far."""
        event = self._joined
        found = sorted(
            self._placements.values(),
            key=lambda each: (not each.speeds, -shown_speed(each), sorted(each.nodes)),
        )
        return TrialReported(
            step=self._step,
            is_complete=self._is_complete,
            goal=self._settings.goal,
            words=self._words,
            model=event.model,
            global_batch_size=event.global_batch_size,
            workers=event.workers,
            devices=event.devices,
            placements=tuple(map(self._tried, found)),
        )

    # --- one visit ------------------------------------------------------------------------------

    def _begin(self, table: StepTable, at_seconds: float) -> None:
        """All who are there now are measured first."""
        self._joined = table.joined
        nodes = frozenset(worker.node for worker in table.workers)
        self._enter(self._of(nodes), at_seconds)
        if len(nodes) < 2:  # noqa: PLR2004 - there is nothing to leave out
            self._end("there is but one node: nothing to try")
        elif self._settings.goal == "money" and nodes - self._prices.keys():
            unpriced = ", ".join(sorted(nodes - self._prices.keys()))
            self._end(f"nothing to compare: no price_per_hour of {unpriced}")

    def _of(self, nodes: Nodes) -> TriedSet:
        return self._placements.setdefault(nodes, TriedSet(nodes=nodes))

    def _workers_of(self, nodes: Nodes) -> list[WorkerId]:
        return [worker for worker in self._joined.workers if worker.node in nodes]

    @property
    def _together(self) -> TriedSet:
        """All nodes."""
        return self._of(frozenset(worker.node for worker in self._joined.workers))

    def _enter(self, placement: TriedSet, at_seconds: float) -> None:
        self._visit = Visit(placement=placement, since_seconds=at_seconds)
        self.wanted = frozenset(self._workers_of(placement.nodes))
        if placement is not self._together and not placement.speeds:
            low, high = placement.predicted
            self._news.append(f"trial: {placement}: {low:.4g} to {high:.4g} samples/s predicted")

    def _has_power(self, visit: Visit, at_seconds: float, watts: Mapping[str, float]) -> bool:
        """Whether nothing is to be waited for: a sample comes each second, and steps are short."""
        if math.isnan(visit.measured_at_seconds):
            visit.measured_at_seconds = at_seconds
        is_late = at_seconds >= visit.measured_at_seconds + MAX_POWER_SECONDS
        return self._settings.goal != "energy" or visit.placement.nodes <= watts.keys() or is_late

    def _measured(self, visit: Visit) -> None:
        """Keep what a visit has shown."""
        steps = sum(each.num_steps for each in visit.tables)
        exposed = math.fsum(each.num_steps * each.exposed_comm_seconds for each in visit.tables)
        placement = visit.placement
        speeds = [each.samples_per_second for each in visit.tables]
        placement.exchanges[self._round] = speeds
        placement.num_steps += steps
        if len(self._workers_of(placement.nodes)) > 1 and math.isfinite(exposed):
            placement.exposed_seconds.append(exposed / steps)
        self._news.append(
            f"trial: {placement}: {median(speeds):.4g} samples/s, round {self._round + 1}, "
            f"{steps} steps"
        )

    def _void(self, why: str) -> None:
        """What is being measured of this placement does not count; all come back."""
        visit, self._visit, self.wanted = self._visit, None, None
        if visit is None:
            return
        placement = visit.placement
        placement.num_void += 1
        self._news.append(f"trial: {placement}: void, {why}")
        if not placement.verdict and placement.num_void < MAX_VOID:
            self._due.append(placement)
        elif not placement.verdict:
            placement.leave(f"left after {MAX_VOID} trials in vain: {why}")

    def _leave_out_those_that_miss(self, there: Collection[WorkerId]) -> None:
        for placement in self._placements.values():
            missing = sorted(set(self._workers_of(placement.nodes)) - set(there))
            if missing and not placement.verdict:
                placement.leave(f"{', '.join(map(str, missing))} is not there any more")

    # --- which one is next ----------------------------------------------------------------------

    def _go_on(self, at_seconds: float) -> None:
        while self._due:
            placement = self._due.pop(0)
            if not placement.verdict:
                self._enter(placement, at_seconds)
                return
        if not self._together.speeds:
            self._end(f"all nodes together were not measured: {self._together.verdict}")
        elif math.isnan(self._typical(self._together)):
            self._end(f"nothing to compare: the power of {self._together} was not measured")
        elif (first := self._most_promising()) is not None:
            self._enter(first, at_seconds)
        else:
            self._judge(at_seconds)

    def _most_promising(self) -> TriedSet | None:
        """Of those that were not measured, if one may be the best and there is time to tell.

        In later rounds, too: in the first one somebody's load may have misled the predictions.
        """
        if self._round > MAX_ROUNDS - MIN_PAIRS:
            return None
        self._predict()
        others = self._unmeasured()
        return next(iter(others), None) if self._num_measured < MAX_MEASURED else None

    @property
    def _num_measured(self) -> int:
        return sum(bool(each.exchanges) for each in self._placements.values())

    def _unmeasured(self) -> list[TriedSet]:
        """Those that may be better than the best that was measured, what may be fastest first."""
        found = self._placements.values()
        best = max(self._typical(each) for each in found if each.exchanges)
        others = [each for each in found if not each.exchanges and not each.verdict]
        reaching = [each for each in others if self._at_most(each) >= best]
        return sorted(reaching, key=self._at_most, reverse=True)

    def _predict(self) -> None:
        """Who has no samples would hold up the others by one of them: so slow it is at least."""
        waits = {
            n: median(p.exposed_seconds) for n, p in self._placements.items() if p.exposed_seconds
        }
        waits.setdefault(self._together.nodes, 0.0)
        size, speeds = self._joined.global_batch_size, self._together.speeds.values()
        idle = [ShareTime(share=1, busy_seconds=size / median(speeds), num_steps=1)]
        run = MeasuredJob(
            joined=self._joined,
            times={worker: self._times[worker] or idle for worker in self._joined.workers},
            exposed_seconds=waits[self._together.nodes],
            prices=self._prices,
            watts={node: fmean(values) for node, values in self._watts.items()},
        )
        for nodes, low, high in predicted_speeds(run, self._settings.goal, waits):
            if len(self._workers_of(nodes)) < self._settings.min_np or self._of(nodes).speeds:
                continue
            self._of(nodes).predicted = low, high
            if not high:
                self._of(nodes).verdict = "not measured: it cannot hold the global batch"

    def _judge(self, at_seconds: float) -> None:
        """After a round: who may still be the best, and whether that is known."""
        known = [each for each in self._placements.values() if each.exchanges]
        racing = [each for each in known if not each.verdict]
        if not racing:
            self._end("no placement is left that could be measured")
            return
        best = max(racing, key=self._typical)
        error = error_of_a_pair(math.comb(len(known), 2), MAX_ROUNDS)
        others = [each for each in racing if each is not best]
        verdicts = {
            each.nodes: verdict_of(
                self._values(each),
                self._values(best),
                error=error,
                is_last=self._round == MAX_ROUNDS - 1,
                may_leave=each is not self._together,
            )
            for each in others
        }
        is_open = not all(verdicts.values())
        for each in others:
            if not is_open or verdicts[each.nodes] != AS_GOOD:
                each.verdict = verdicts[each.nodes]
        if is_open:
            self._begin_round([each for each in racing if not each.verdict])
            self._go_on(at_seconds)
            return
        best.verdict = "best"
        self._is_complete = True
        num_left = sum(each.is_left for each in known)
        more = f", without {num_left} that had to be left" if num_left else ""
        self._end(f"best of {len(known) - num_left} that were measured{more}: {best}")

    def _begin_round(self, racing: list[TriedSet]) -> None:
        """Each goes the other way."""
        self._round += 1
        self._due = sorted(racing, key=lambda each: (-len(each.nodes), sorted(each.nodes)))
        self._due = self._due[::-1] if self._round % 2 else self._due

    def _end(self, words: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._tell_of_those_that_were_not_measured()
        self._words = words
        self._visit = self.wanted = None
        self._news.append(f"trial: {words}")

    def _tell_of_those_that_were_not_measured(self) -> None:
        """Unless the job has ended before that was known."""
        if not self._together.exchanges or math.isnan(self._typical(self._together)):
            return
        reaching = self._unmeasured()
        for each in self._placements.values():
            if each.exchanges or each.verdict or math.isnan(each.predicted[0]):
                continue
            if each not in reaching:
                each.verdict = "not measured: too slow as predicted"
            elif self._is_complete or self._num_measured >= MAX_MEASURED:
                each.verdict = f"not measured: {self._num_measured} others were"

    # --- what they are worth --------------------------------------------------------------------

    def _rate(self, placement: TriedSet, goal: Goal) -> float:
        """Money or joules per second of all its nodes; NaN: not known of one of them."""
        if goal == "speed":
            return 1.0
        if goal == "money":
            return math.fsum(self._prices.get(n, math.nan) for n in placement.nodes) / 3600.0
        watts = self._watts
        return math.fsum(fmean(watts[n]) if watts.get(n) else math.nan for n in placement.nodes)

    def _values(self, placement: TriedSet) -> dict[int, list[float]]:
        """Samples per second, per money or per joule of each exchange of each round."""
        rate = max(self._rate(placement, self._settings.goal), FREE)
        return {
            key: [each / rate for each in speeds] for key, speeds in placement.exchanges.items()
        }

    def _typical(self, placement: TriedSet) -> float:
        """The median over the rounds, which one loaded round does not change."""
        return median(map(median, self._values(placement).values()))

    def _at_most(self, placement: TriedSet) -> float:
        """As `_values`, by its prediction; none: nothing is known, and so it is worth a trial."""
        high = placement.predicted[1] / max(self._rate(placement, self._settings.goal), FREE)
        return math.inf if math.isnan(high) else high

    def _tried(self, placement: TriedSet) -> PlacementTried:
        speed = median_of(placement.speeds.values())
        return PlacementTried(
            nodes=tuple(sorted(placement.nodes)),
            verdict=placement.verdict,
            predicted_low=placement.predicted[0],
            predicted_high=placement.predicted[1],
            rounds=tuple(placement.speeds),
            samples_per_second=tuple(placement.speeds.values()),
            exchanges=tuple(map(tuple, placement.exchanges.values())),
            num_steps=placement.num_steps,
            num_void=placement.num_void,
            cost_per_sample=self._rate(placement, "money") / speed,
            joules_per_sample=self._rate(placement, "energy") / speed,
        )
