"""What workers tell each other while a step is applied, also where one of them is lost meanwhile.

A membership begins between two steps. So whoever is in the midst of an application enters the new
rendezvous with that in its report, and those who wait there help it to hear the others, until all
have come to its end; then they meet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.last_state import LastState
from hetero_hvd.worker.recovery.reports import FRESH, Report, exchange_reports, members_of
from hetero_hvd.worker.shards.optional_shards import OptionalShards
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer
from hetero_hvd.worker.step.other_optimizers import OwnUpdate

logger = logging.getLogger(__name__)


class Retold(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has for those who are still to hear the others.

    Attributes:
        own: What it tells itself, if it is at the same place.
        heard: What it has heard there, in rank order, if it is further.
    """

    own: bytes | None = None
    heard: list[bytes] | None = None


class StepApplication:
    """What this worker has heard in the application of the last step.

    Args:
        position: Of this worker.
        last_state: Is not kept where only a half of a step is applied.
        report: What this worker tells of itself in a rendezvous.
        restart: Leaves this rendezvous and enters the next one.
        shards: The optimizer's state in parts; None: each worker has all of it.

    Attributes:
        fault: Why the membership is over that the step under way began with; "": it is not.
    """

    def __init__(
        self,
        position: Position,
        last_state: LastState,
        report: Callable[[], Report],
        restart: Callable[[], None],
        shards: ShardedOptimizer | None = None,
    ) -> None:
        self._shards = shards
        if shards is not None:
            shards.finish_elsewhere = self.finish_update
        self._position = position
        self._last_state = last_state
        self._report = report
        self._restart = restart
        self._step = -1
        self._heard: list[list[bytes]] = []
        self.fault = ""

    @property
    def num_heard(self) -> int:
        """How often this worker has heard all others in the application of the last step."""
        return len(self._heard) if self._step == self._position.applied_steps else 0

    def gather(self, collective: Collective, payload: bytes, name: str) -> list[bytes]:
        """Every worker's bytes, in rank order; if one is lost, those of all who apply the step.

        Args:
            collective: The rendezvous.
            payload: This worker's.
            name: Of what is gathered.
        """
        if self._step != self._position.applied_steps:
            self._step = self._position.applied_steps
            self._heard = []
        if not self.fault:
            try:
                return self._hear(gather_bytes(collective, payload, name))
            except Interrupted as fault:
                logger.info("%s: told again in a new rendezvous: %s", name, fault)
                self.fault = str(fault)
                self._restart_within()
        while True:
            try:
                reports = exchange_reports(collective, self._report())
                if self._has_completed(collective, reports):
                    continue
                is_mine = self.num_heard == _first_missing(reports)
                parts = self._round(collective, reports, payload if is_mine else None)
            except Interrupted as fault:
                logger.info("the rendezvous broke: %s", fault)
                self._restart_within()
                continue
            if is_mine:
                return self._hear(parts)

    def reports(self, collective: Collective, own: Callable[[], Report]) -> list[Report]:
        """What all members report, once none of them is in the midst of a step any more.

        Args:
            collective: A new rendezvous.
            own: Gives the report of this worker, which is between two steps.

        Raises:
            Interrupted: The rendezvous broke.
        """
        report = own()
        collective.laps.lap("checksum")
        while True:
            reports = exchange_reports(collective, report)
            collective.laps.lap("reports")
            if not any(each.is_applying for each in reports):
                shards = self._shards
                if not isinstance(shards, OptionalShards) or not shards.decide(members_of(reports)):
                    return reports
                report = own()  # what the replicas have in common is another thing from now on
                continue
            if self._shards is not None and self._has_completed(collective, reports):
                report = _with_parts(report, self._shards)
            else:
                self._round(collective, reports, None)

    def finish_update(self, collective: Collective, fault: Interrupted) -> None:
        """Others are lost in the midst of an update of parts: bring it to its end with who is left.

        Args:
            collective: The rendezvous that broke.
            fault: How.

        Raises:
            Interrupted: Others have brought it to its end, or a part is lost with all its holders;
                this worker is in a new rendezvous already, see `fault`.
        """
        assert self._shards is not None  # noqa: S101 - it has called
        logger.info("an update is brought to its end in a new rendezvous: %s", fault)
        self.fault = str(fault)
        self._restart_within()
        while True:
            try:
                reports = exchange_reports(collective, self._report())
                is_complete = self._shards.complete(collective, members_of(reports))
            except Interrupted as broken:
                logger.info("the rendezvous broke: %s", broken)
                self._restart_within()
                continue
            if is_complete:
                return
            raise Interrupted(self.fault)

    def _has_completed(self, collective: Collective, reports: Sequence[Report]) -> bool:
        """Whether some wait in the midst of an update: that comes first, all know it alike."""
        members = members_of(reports)
        if self._shards is None or not any(member.is_applying for member in members):
            return False
        with OwnUpdate():
            self._shards.complete(collective, members)
        return True

    def over(self) -> None:
        """All have met: a new membership has begun."""
        self.fault = ""
        self._heard = []

    def _hear(self, parts: list[bytes]) -> list[bytes]:
        self._heard.append(parts)
        return parts

    def _round(
        self, collective: Collective, reports: Sequence[Report], own: bytes | None
    ) -> list[bytes]:
        """Let those who are furthest behind hear the others; gives what they hear.

        Who was further when the membership ended knows what was told; else it is told again.
        """
        number, step = _first_missing(reports), _step_of(reports)
        is_further = self._position.applied_steps == step and self.num_heard > number
        told = Retold(own=own, heard=self._heard[number] if is_further else None)
        rows = gather_bytes(collective, msgspec.msgpack.encode(told), "told")
        found = [msgspec.msgpack.decode(row, type=Retold) for row in rows]
        known = [each.heard for each in found if each.heard is not None]
        return known[0] if known else [each.own for each in found if each.own is not None]

    def _restart_within(self) -> None:
        """Enter the next rendezvous; whoever is not let in has no whole state to leave."""
        before, self._last_state.is_trusted = self._last_state.is_trusted, False
        self._restart()
        self._last_state.is_trusted = before


def _with_parts(report: Report, shards: ShardedOptimizer) -> Report:
    """The same after others were helped: their update may have left this worker between two."""
    steps = FRESH if shards.is_torn else report.applied_steps
    own = shards.held(report.applied_steps, None)
    return replace(report, applied_steps=steps, shards=own)


def _first_missing(reports: Sequence[Report]) -> int:
    """What those who are in the midst of the step, and furthest behind, are to hear next."""
    return min(each.num_heard for each in reports if each.is_applying)


def _step_of(reports: Sequence[Report]) -> int:
    """Which step that is: none of them can begin another one."""
    return next(each.applied_steps for each in reports if each.is_applying)
